"""Programs for absent devices, in every framework that can compile them.

They are read, and compared with the policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest
from unamp_conformance.check.absentchecks import check_program
from unamp_conformance.check.networks import NETWORKS
from unamp_conformance.meta.mutants import KINDS, MutableSubject
from unamp_conformance.results import Result
from unamp_conformance.run.plan import Selection
from unamp_conformance.run.worker import perform, planned
from unamp_conformance.subjects import Subject

from unamp import Policy
from unamp.dtypes import LOW_DTYPES
from unamp.policy import LEVELS

#: Operations of several groups and rules.
OPERATIONS = ["add", "conv2d", "exp", "gelu", "linear", "mse_loss", "softmax", "sum"]


def read(framework: str, device: str, network: str, policy: Policy) -> tuple[str, list[str]]:
    """Return the faults of a network's program, and its operations except elementwise ones.

    The faults are empty where nothing is wrong.
    """
    wrong, details = check_program(Subject(framework, device), NETWORKS[network], policy)[
        "decisions"
    ]
    return wrong, details["trace"]


def probed(subject: Subject, op: str, dtypes: Sequence[str] = ("bfloat16",)) -> list[Result]:
    """Return the results of probing one operation's programs."""
    (item,) = planned(subject, Selection(ops=(op,), dtypes=tuple(dtypes)))
    return perform(subject, item)


def forgotten_operation_is_caught(
    subject: Subject, monkeypatch: Any, off: AbstractContextManager[Any] | Any, op: str = "linear"
) -> None:
    """Check that a network's operation is noticed where it runs with no policy in force.

    `off` makes the context in which no policy is in force.
    """
    known = type(subject.operations).__getitem__

    def forgetful(self: Any, name: str) -> Any:
        function = known(self, name)

        def outside(*args: object, **kw: object) -> object:
            with off():
                return function(*args, **kw)

        return outside if name == op else function

    monkeypatch.setattr(type(subject.operations), "__getitem__", forgetful)
    wrong, _ = check_program(subject, NETWORKS["mlp"], Policy("O1", "float16"))["decisions"]
    assert f"not in the trace: 0 {op}" in wrong


def reasons(found: Sequence[Result]) -> set[tuple[str, str]]:
    """Return the status and the reason of results that did not pass."""
    return {(result.status, result.details["why"]) for result in found if result.status != "passed"}


# --- tests that a folder imports: for the devices in `DEVICES` of its module ----------------------


@pytest.fixture
def devices(request: pytest.FixtureRequest) -> list[str]:
    return request.module.DEVICES  # type: ignore[no-any-return]


def test_an_operation_is_read_under_the_users_lists_and_at_every_level_in_both_dtypes(
    framework: str, devices: list[str]
) -> None:
    (item,) = planned(Subject(framework, devices[0]), Selection(ops=("softmax",)))
    assert (item.kind, item.checks) == ("operation", ("probe",))
    lists = {f"{rule} {dtype}" for rule in ("allow", "deny") for dtype in LOW_DTYPES}
    assert item.policies.keys() == lists | {
        f"{level} {dtype} unamp" for level in LEVELS for dtype in LOW_DTYPES
    }


@pytest.mark.parametrize("op", OPERATIONS)
def test_an_operation_would_compute_there_as_the_policy_says(
    framework: str, devices: list[str], op: str
) -> None:
    for device in devices:
        found = probed(Subject(framework, device), op)
        assert {(result.check, result.status, result.device) for result in found} == {
            ("probe", "passed", device)
        }


@pytest.mark.parametrize("feed", ["float32", "low"])
@pytest.mark.parametrize("op", OPERATIONS)
def test_a_result_of_the_right_dtype_that_was_computed_in_another_is_caught(
    framework: str, devices: list[str], op: str, feed: str
) -> None:
    subject = MutableSubject(framework, devices[0])
    rule = {"float32": "low", "low": "float32"}[feed]
    with subject.mutant(op, KINDS[f"forward, {feed} inputs, rule {rule}"]):
        found = {result.policy: result for result in probed(subject, op)}
    assert found[f"{'allow' if rule == 'low' else 'deny'} bfloat16"].status == "failed"


@pytest.mark.parametrize("op", ["matmul", "conv2d"])
def test_gradients_that_are_computed_in_another_dtype_than_the_policys_are_caught(
    framework: str, devices: list[str], op: str
) -> None:
    """Check a product that should be low and is float32, with float32 gradients."""
    subject = MutableSubject(framework, devices[0])
    with subject.mutant(op, KINDS["forward, float32 inputs, rule low"]):
        found = {result.policy: result.message for result in probed(subject, op)}
    assert (
        "float32 inputs, backward: computed in float32, the policy says bfloat16"
        in found["allow bfloat16"]
    )


def test_a_device_that_is_not_here_has_decisions_and_no_numbers(
    framework: str, devices: list[str]
) -> None:
    device = devices[1 % len(devices)]
    subject = Subject(framework, device)
    items = planned(subject, Selection(networks=("conv",), levels=("O1",), dtypes=("float16",)))
    results = [result for item in items for result in perform(subject, item)]
    assert {(result.check, result.status, result.device) for result in results} == {
        ("decisions", "passed", device)
    }
    assert not any("error" in result.details for result in results)
    assert not planned(subject, Selection(checks=("outputs", "ways")))


__all__ = ["devices", *(name for name in globals() if name.startswith("test_"))]
