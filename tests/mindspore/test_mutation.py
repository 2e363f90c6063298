"""The suite notices where this adapter is spoilt, and says which operation is wrong."""

import pytest
from spoilt import (
    KINDS_OF_NETWORKS,
    WRONGLY,
    defects_of_every_kind_are_noticed,
    forgotten_operations_are_named,
    networks_in_another_dtype_are_noticed,
    wrong_operation_is_named,
)
from unamp_conformance.subjects import Subject

SUBJECT = Subject("mindspore", "cpu")


def test_an_operation_that_the_adapter_forgets_is_named():
    forgotten_operations_are_named(SUBJECT)


def test_a_defect_of_any_kind_is_noticed():
    defects_of_every_kind_are_noticed("mindspore")


@pytest.mark.parametrize(("op", "manner"), WRONGLY)
def test_an_operation_carried_out_wrongly_is_named(op, manner):
    wrong_operation_is_named(SUBJECT, op, manner)


@pytest.mark.parametrize("kind", KINDS_OF_NETWORKS)
def test_networks_that_compute_in_another_dtype_are_noticed(kind):
    networks_in_another_dtype_are_noticed(SUBJECT, kind)
