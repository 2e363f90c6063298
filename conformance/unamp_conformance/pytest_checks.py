"""The checks as parameters of a test; see `unamp_conformance.pytest_plugin`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pytest

from unamp.adapter import machine
from unamp.adapter.registry import installed
from unamp.errors import AdapterError
from unamp_conformance.gaps import KnownGap, gaps_of, in_vain, that_hold
from unamp_conformance.results import Result
from unamp_conformance.run.plan import NOTHING_SELECTED, Item, Selection
from unamp_conformance.run.worker import perform, planned
from unamp_conformance.subjects import Subject

__all__ = ["Check", "parameters"]


class _Work:
    """An item that is done once and gives several checks their results.

    One run of a network serves all its checks.
    """

    def __init__(self, subject: Subject, item: Item, full: bool) -> None:
        self.subject, self.item, self._full = subject, item, full

    @cached_property
    def results(self) -> list[Result]:
        """The results of the item; it is done when they are first asked for."""
        return perform(self.subject, self.item, full=self._full)


@dataclass(frozen=True)
class Check:
    """One check.

    Args:
        work: the item that gives its result.
        kind: the kind of check.
        policy: the policy's name; ``-`` for none.
    """

    work: _Work
    kind: str
    policy: str

    def expected(self) -> Result:
        """Return the result where all is well."""
        item, device = self.work.item, self.work.subject.device
        return Result(self.kind, item.subject, self.policy, device, "passed", way=item.way)

    def run(self) -> None:
        """Run the item, and fail the calling test where the check does not hold."""
        result = next((result for result in self.work.results if result.check == self.kind), None)
        if result is None:
            pytest.fail(
                f"its example call cannot be used: see the test coverage-{self.work.item.subject}",
                pytrace=False,
            )
        if result.status == "not applicable":
            pytest.skip(f"not applicable: {result.message}")
        if result.status == "not run":
            pytest.skip(f"not run: {result.message}")
        if result.status not in ("passed", "refused"):
            pytest.fail("\n".join([result.message, *_told(result.details)]), pytrace=False)

    @property
    def name(self) -> str:
        """A test's name, without spaces, so that it can be pasted into a command."""
        subject, policy = self.work.subject, self.policy.split() if self.policy != "-" else ()
        way = self.work.item.way.replace(",", "").split()
        return "-".join(
            (subject.framework, subject.device, self.kind, *way, self.work.item.subject, *policy)
        )


def _told(details: Mapping[str, Any]) -> Iterator[str]:
    for name, value in details.items():
        yield from (f"{name}: {line}" for line in (value if isinstance(value, list) else (value,)))


def parameters(framework: str | None, device: str, selected: Mapping[str, Any]) -> list[Any]:
    """Return the checks of a framework as parameters of a test, known gaps expected to fail.

    Args:
        framework: its import name.
        device: ``"cpu"`` or ``"gpu"``.
        selected: the arguments of `Selection`.

    Raises:
        pytest.UsageError: for unknown names, and where the framework cannot be used.
    """
    if framework is None or framework not in installed():
        given = (
            f"unknown framework {framework!r}"
            if framework
            else "name a framework, with --unamp-framework"
        )
        raise pytest.UsageError(
            f"{given}; adapters are installed for: {', '.join(sorted(installed())) or 'none'}"
        )
    if "agreement" in selected["checks"]:
        raise pytest.UsageError(
            "agreement needs several frameworks, each in a process of its own: "
            "unamp conformance has it"
        )
    subject = Subject(framework, device)
    try:
        selection = Selection(**selected)
        version, present, facts = (
            subject.adapter.version(),
            subject.present(),
            machine.facts(subject.adapter),
        )
    except (TypeError, ValueError, ImportError, AdapterError) as error:
        raise pytest.UsageError(f"{framework}: {error}") from error
    if not present:
        return [
            pytest.param(
                None,
                id=f"{framework}-{device}",
                marks=pytest.mark.skip(f"not run: there is no {device} here"),
            )
        ]
    if wrong := in_vain(gaps_of(framework), version, facts):
        raise pytest.UsageError(wrong[0])
    known = that_hold(framework, version, facts)
    work = (
        check
        for item in planned(subject, selection)
        for check in _checks(subject, item, selection.full, known)
    )
    found = [_parameter(check, known) for check in work]
    if not found:
        raise pytest.UsageError(f"nothing was selected: {NOTHING_SELECTED}")
    return found


def _checks(subject: Subject, item: Item, full: bool, known: Sequence[KnownGap]) -> Iterator[Check]:
    if "coverage" in item.checks:
        coverage = Check(
            _Work(subject, replace(item, policies={}, checks=("coverage",)), full), "coverage", "-"
        )
        yield coverage
        if _gap(coverage, known):  # there is no example call to probe it with
            return
    kinds = tuple(kind for kind in item.checks if kind != "coverage")
    for name, policy in item.policies.items():
        work = _Work(subject, replace(item, policies={name: policy}, checks=kinds), full)
        yield from (Check(work, kind, name) for kind in kinds)


def _parameter(check: Check, known: Sequence[KnownGap]) -> Any:
    gap = _gap(check, known)
    marks = [pytest.mark.xfail(reason=f"{gap.reason} {gap.link}", strict=True)] if gap else []
    return pytest.param(check, id=check.name, marks=marks)


def _gap(check: Check, known: Sequence[KnownGap]) -> KnownGap | None:
    return next((gap for gap in known if gap.covers(check.expected())), None)
