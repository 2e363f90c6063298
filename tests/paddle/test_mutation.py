"""The suite notices where this adapter is spoilt, and says which operation is wrong."""

import pytest
from spoilt import WRONGLY, forgotten_operations_are_named, wrong_operation_is_named
from unamp_conformance.subjects import Subject

SUBJECT = Subject("paddle", "cpu")


def test_an_operation_that_the_adapter_forgets_is_named():
    forgotten_operations_are_named(SUBJECT)


@pytest.mark.parametrize(("op", "manner"), WRONGLY)
def test_an_operation_carried_out_wrongly_is_named(op, manner):
    wrong_operation_is_named(SUBJECT, op, manner)
