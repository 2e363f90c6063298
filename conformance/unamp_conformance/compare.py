"""Two runs side by side: GPU against CPU, version against version, framework against framework."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from unamp_conformance.agreement import agreement
from unamp_conformance.results import FrameworkRun, Report, Result

__all__ = ["Difference", "compare", "disagreements"]


@dataclass(frozen=True)
class Difference:
    """A check that came out differently."""

    check: str
    subject: str
    policy: str
    first: str
    second: str
    message: str


def compare(first: Report, second: Report) -> list[Difference]:
    """What differs between two reports, framework by framework; a framework or device that both lack is not compared.

    Where each report holds one run only, these two are compared, whatever their frameworks and devices.
    """
    return [d for a, b in _paired(first, second) for d in _differences(a, b)]


def disagreements(first: FrameworkRun, second: FrameworkRun) -> list[Difference]:
    """Where two runs decided differently, or came to other numbers."""
    return [
        Difference(result.check, result.subject, result.policy, "passed", "passed", result.message)
        for result in agreement(first, second)
        if result.status == "failed"
    ]


def _paired(first: Report, second: Report) -> Iterator[tuple[FrameworkRun, FrameworkRun]]:
    if len(first.runs) == len(second.runs) == 1:
        yield first.runs[0], second.runs[0]
        return
    theirs = {(run.framework, run.device): run for run in second.runs}
    for run in first.runs:
        if other := theirs.get((run.framework, run.device)):
            yield run, other


def _differences(first: FrameworkRun, second: FrameworkRun) -> Iterator[Difference]:
    a, b = _by_name(first), _by_name(second)
    for name in a.keys() | b.keys():
        mine, other = a.get(name), b.get(name)
        statuses = tuple("absent" if r is None else r.status for r in (mine, other))
        if statuses[0] != statuses[1]:
            message = next((r.message for r in (mine, other) if r is not None and r.message), "")
            yield Difference(*name, *statuses, message)
    yield from disagreements(first, second)


def _by_name(run: FrameworkRun) -> dict[tuple[str, str, str], Result]:
    return {(r.check, r.subject, r.policy): r for r in run.results}
