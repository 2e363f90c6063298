"""The suite notices where this adapter is spoilt, and says which operation is wrong."""

import pytest
from unamp_conformance.mutation import MANNERS, candidates, choose, pretending, probed, telling, verdicts
from unamp_conformance.subjects import Subject

SUBJECT = Subject("torch", "cpu")


def test_an_operation_that_the_adapter_forgets_is_named():
    found = list(verdicts(SUBJECT, choose(telling(candidates(SUBJECT)), 32)))
    assert [verdict.op for verdict in found if not verdict.honest] == []
    assert [verdict for verdict in found if not verdict.noticed] == []
    assert len(found) == 32


@pytest.mark.parametrize("op", ["matmul", "mul", "exp", "softmax"])
@pytest.mark.parametrize("manner", MANNERS)
def test_an_operation_carried_out_wrongly_is_named(manner, op):
    wrong = [result for result in probed(pretending(SUBJECT, manner), op) if result.status == "failed"]
    assert {(result.check, result.subject) for result in wrong} == {("probe", op)}
    assert ("backward" in wrong[0].message and "forward" not in wrong[0].message) == (manner == "forgets the gradient")
