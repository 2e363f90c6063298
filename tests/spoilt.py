"""The suite notices where an adapter is spoilt, and names the operation. Each framework's folder asks it of its own adapter."""

from __future__ import annotations

from unamp_conformance.mutation import MANNERS, candidates, choose, pretending, probed, telling, verdicts
from unamp_conformance.subjects import Subject

#: Operations that every framework has, and the ways in which an adapter may carry one out wrongly.
OPS = ("matmul", "mul", "exp", "softmax")
WRONGLY = tuple((op, manner) for manner in MANNERS for op in OPS)


def forgotten_operations_are_named(subject: Subject) -> None:
    """32 operations, spread over all groups, are forgotten one after the other."""
    found = list(verdicts(subject, choose(telling(candidates(subject)), 32)))
    assert [verdict.op for verdict in found if not verdict.honest] == []
    assert [verdict for verdict in found if not verdict.noticed] == []
    assert len(found) == 32


def wrong_operation_is_named(subject: Subject, op: str, manner: str) -> None:
    """One operation is carried out in one of the wrong manners."""
    wrong = [result for result in probed(pretending(subject, manner), op) if result.status == "failed"]
    assert {(result.check, result.subject) for result in wrong} == {("probe", op)}
    assert ("backward" in wrong[0].message and "forward" not in wrong[0].message) == (manner == "forgets the gradient")
