"""The suite notices defects in an adapter, and names the operation.

Each framework's folder imports the tests.
"""

from __future__ import annotations

import pytest
from unamp_conformance.meta.mutants import KINDS, MutableSubject
from unamp_conformance.meta.mutation import (
    MANNERS,
    candidates,
    choose,
    pretending,
    probed,
    telling,
    verdicts,
)
from unamp_conformance.meta.noticing import NOTICED, SAME, Bench
from unamp_conformance.meta.tightness import KINDS as PRECISIONS
from unamp_conformance.meta.tightness import ratios, spoilt
from unamp_conformance.subjects import Subject

#: Operations that every framework has, and wrong ways in which an adapter may carry one out.
OPS = ("matmul", "mul", "exp", "softmax")
KINDS_OF_NETWORKS = tuple(PRECISIONS)
WRONGLY = tuple((op, manner) for manner in MANNERS for op in OPS)


def test_an_operation_that_the_adapter_forgets_is_named(framework: str) -> None:
    """Check 24 operations of all groups, which the adapter forgets one after another.

    Every framework has other ones.
    """
    subject = Subject(framework, "cpu")
    found = list(verdicts(subject, choose(telling(candidates(subject)), 24)))
    assert [verdict.op for verdict in found if not verdict.honest] == []
    assert [verdict for verdict in found if not verdict.noticed] == []
    assert len(found) == 24


@pytest.mark.parametrize(("op", "manner"), WRONGLY)
def test_an_operation_carried_out_wrongly_is_named(framework: str, op: str, manner: str) -> None:
    """Check one operation that is carried out in one wrong way."""
    wrong = [
        result
        for result in probed(pretending(Subject(framework, "cpu"), manner), op)
        if result.status == "failed"
    ]
    assert {(result.check, result.subject) for result in wrong} == {("probe", op)}
    assert ("backward" in wrong[0].message and "forward" not in wrong[0].message) == (
        manner == "forgets the gradient"
    )


def test_a_defect_of_any_kind_is_noticed(framework: str) -> None:
    """Check four operations, drawn by a seed from all groups, with defects.

    Each has a defect of every kind that can show there.
    """
    bench = Bench(MutableSubject(framework, "cpu"))
    found = {
        op: dict(bench.verdicts(op, tuple(KINDS.values())))
        for op in choose(telling(bench.ops(0)), 4, seed=2)
    }
    assert [
        (op, kind, said)
        for op, verdicts in found.items()
        for kind, said in verdicts.items()
        if said not in (NOTICED, SAME)
    ] == []
    noticed = [said for verdicts in found.values() for said in verdicts.values() if said == NOTICED]
    assert len(noticed) > 30


@pytest.mark.parametrize("kind", KINDS_OF_NETWORKS)
def test_networks_that_compute_in_another_dtype_are_noticed(framework: str, kind: str) -> None:
    """Check that networks are noticed by their numbers alone, whatever their dtypes say.

    Of all networks, these two are the most difficult to notice.
    """
    found = list(spoilt(Subject(framework, "cpu"), kind, ("conv", "transformer")))
    near = [
        (run.network, run.precision)
        for run in found
        if not run.raised and max(ratios(run).values()) <= 1.0
    ]
    assert near == []
    assert sum(not run.raised for run in found) > len(found) / 2
