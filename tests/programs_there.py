"""Programs for devices that are not here, in every framework that has them: read, and held against the policy."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

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
    """Return what is wrong with a network's program, empty where nothing is, and its operations but for elementwise ones."""
    wrong, details = check_program(Subject(framework, device), NETWORKS[network], policy)["decisions"]
    return wrong, details["trace"]


def probed(subject: Subject, op: str, dtypes: Sequence[str] = ("bfloat16",)) -> list[Result]:
    """Return the results of one operation's programs."""
    (item,) = planned(subject, Selection(ops=(op,), dtypes=tuple(dtypes)))
    return perform(subject, item)


def operation_is_read_under_lists_and_levels(framework: str, device: str) -> None:
    """Allowed and denied, and at every level of the default preset, in both dtypes."""
    (item,) = planned(Subject(framework, device), Selection(ops=("softmax",)))
    assert (item.kind, item.checks) == ("operation", ("probe",))
    lists = {f"{rule} {dtype}" for rule in ("allow", "deny") for dtype in LOW_DTYPES}
    assert item.policies.keys() == lists | {f"{level} {dtype} unamp" for level in LEVELS for dtype in LOW_DTYPES}


def operation_is_as_the_policy_says(framework: str, device: str, op: str) -> None:
    """Under every policy, in a dtype."""
    found = probed(Subject(framework, device), op)
    assert {(result.check, result.status, result.device) for result in found} == {("probe", "passed", device)}


def result_of_another_precision_is_caught(framework: str, device: str, op: str, feed: str) -> None:
    """Where the result has the right dtype, and was computed in another."""
    subject = MutableSubject(framework, device)
    rule = {"float32": "low", "low": "float32"}[feed]
    with subject.mutant(op, KINDS[f"forward, {feed} inputs, rule {rule}"]):
        found = {result.policy: result for result in probed(subject, op)}
    assert found[f"{'allow' if rule == 'low' else 'deny'} bfloat16"].status == "failed"


def gradients_of_another_precision_are_caught(framework: str, device: str, op: str) -> None:
    """Where a product that should be low is float32, and so are the gradients."""
    subject = MutableSubject(framework, device)
    with subject.mutant(op, KINDS["forward, float32 inputs, rule low"]):
        found = {result.policy: result.message for result in probed(subject, op)}
    assert "float32 inputs, backward: computed in float32, the policy says bfloat16" in found["allow bfloat16"]


def forgotten_operation_is_caught(
    subject: Subject, monkeypatch: Any, off: AbstractContextManager[Any] | Any, op: str = "linear"
) -> None:
    """Where an operation of a network runs with no policy in force; `off` makes the context in which none is."""
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


def only_decisions_are_read(framework: str, device: str, network: str = "conv") -> None:
    """A device that is not here has decisions and no numbers."""
    subject = Subject(framework, device)
    items = planned(subject, Selection(networks=(network,), levels=("O1",), dtypes=("float16",)))
    results = [result for item in items for result in perform(subject, item)]
    assert {(result.check, result.status, result.device) for result in results} == {("decisions", "passed", device)}
    assert not any("error" in result.details for result in results)
    assert not planned(subject, Selection(checks=("outputs", "ways")))
