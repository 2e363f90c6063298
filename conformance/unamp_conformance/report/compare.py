"""Two runs side by side: GPU against CPU, version against version, framework against framework."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from unamp_conformance.check.agreement import agreement, decided
from unamp_conformance.results import FrameworkRun, Report, Result
from unamp_conformance.subjects import is_absent

__all__ = ["Comparison", "Difference", "Errors", "compare", "of_devices"]

_Name = tuple[str, str, str]


@dataclass(frozen=True)
class Difference:
    """A check that came out differently, or an operation that was decided differently."""

    check: str
    subject: str
    policy: str
    first: str
    second: str
    message: str = ""


@dataclass(frozen=True)
class Errors:
    """The second run's errors against float64 beside the first's, for one kind of check.

    Attributes:
        check: the kind.
        compared: how many checks have an error in both runs.
        median: the median of second over first.
        largest: the largest of them.
        where: the check that has it.
    """

    check: str
    compared: int
    median: float
    largest: float
    where: str


@dataclass(frozen=True)
class Comparison:
    """One framework's run compared with another.

    Attributes:
        first, second: the runs: framework, version, device.
        both: how many checks both ran.
        alone: how many only the first ran, and how many only the second.
        changed: checks that came to another status.
        decisions: operations of a network that ran under another rule, or gave another dtype.
        apart: outputs of networks, and results of operations, that are further apart than precision
            explains.
        errors: how the errors relate.
    """

    first: str
    second: str
    both: int
    alone: tuple[int, int]
    changed: tuple[Difference, ...]
    decisions: tuple[Difference, ...]
    apart: tuple[Difference, ...]
    errors: tuple[Errors, ...]

    @property
    def ok(self) -> bool:
        """Return whether the two agree, in at least one check."""
        return bool(self.both) and not (self.changed or self.decisions or self.apart)

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison for JSON."""
        return {"ok": self.ok, **asdict(self)}


def compare(first: Report, second: Report) -> list[Comparison]:
    """Compare two reports, framework by framework.

    A framework is compared with itself on the same device, or on the only other one that it ran on.
    Where each report holds one run only, these two are compared, whatever their frameworks. A
    framework that is in one report only is not compared.
    """
    return [_compared(a, b) for a, b in _paired(_frameworks(first), _frameworks(second))]


def of_devices(report: Report) -> list[Comparison]:
    """Compare the devices of each framework in one report."""
    found = combinations((run for run in _frameworks(report) if not is_absent(run.device)), 2)
    return [
        _compared(first, second) for first, second in found if first.framework == second.framework
    ]


def _frameworks(report: Report) -> list[FrameworkRun]:
    """Return the runs of one framework each that took place.

    Those of absent devices and those that compare frameworks are left out.
    """
    return [run for run in report.runs if run.ended != "not run" and not run.compares]


def _paired(
    first: list[FrameworkRun], second: list[FrameworkRun]
) -> Iterator[tuple[FrameworkRun, FrameworkRun]]:
    if len(first) == len(second) == 1:
        yield first[0], second[0]
        return
    for run in first:
        others = [other for other in second if other.framework == run.framework]
        alike = [other for other in others if other.device == run.device]
        alone = len(others) == 1 and sum(other.framework == run.framework for other in first) == 1
        if chosen := alike or (others if alone else []):
            yield run, chosen[0]


def _compared(first: FrameworkRun, second: FrameworkRun) -> Comparison:
    a, b = _by_name(first), _by_name(second)
    ran = [
        name
        for name in a
        if name in b and {a[name].status, b[name].status}.isdisjoint(("not run", "not applicable"))
    ]
    common = [name for name in a if name in b]
    # The preset `native` means each framework's own lists, which depend on the device.
    same_lists = (first.framework, first.device) == (second.framework, second.device)
    judged = [name for name in common if same_lists or not name[2].endswith(" native")]
    changed = [
        _change(name, a[name], b[name]) for name in judged if a[name].status != b[name].status
    ]
    return Comparison(
        _title(first),
        _title(second),
        len(ran),
        (len(a) - len(common), len(b) - len(common)),
        (*_ends(first, second), *changed),
        tuple(difference for name in judged for difference in _decisions(name, a[name], b[name])),
        tuple(_apart(first, second)),
        tuple(_errors(a, b, judged)),
    )


def _by_name(run: FrameworkRun) -> dict[_Name, Result]:
    return {
        (r.check, " in ".join(filter(None, (r.subject, r.way))), r.policy): r for r in run.results
    }


def _title(run: FrameworkRun) -> str:
    return f"{run.framework} {run.version}, {run.device}"


def _ends(first: FrameworkRun, second: FrameworkRun) -> Iterator[Difference]:
    if first.ended != second.ended:
        yield Difference("process", first.framework, "-", first.ended, second.ended)


def _change(name: _Name, first: Result, second: Result) -> Difference:
    return Difference(*name, first.status, second.status, first.message or second.message)


def _decisions(name: _Name, first: Result, second: Result) -> Iterator[Difference]:
    ours, theirs = decided(first), decided(second)
    for op in sorted(ours.keys() & theirs.keys()):
        if ours[op] != theirs[op]:
            words = (" or ".join(sorted(found[op])) for found in (ours, theirs))
            yield Difference("decisions", f"{op} in {name[1]}", name[2], *words)


def _apart(first: FrameworkRun, second: FrameworkRun) -> Iterator[Difference]:
    for result in agreement(first, second, decisions=False):
        if result.status == "failed":
            yield Difference(result.check, result.subject, result.policy, "", "", result.message)


def _errors(
    a: Mapping[_Name, Result], b: Mapping[_Name, Result], common: list[_Name]
) -> Iterator[Errors]:
    ratios: dict[str, dict[str, float]] = defaultdict(dict)
    for name in common:
        before, after = (result.details.get("error") for result in (a[name], b[name]))
        if before and after and name[0] != "agreement":
            ratios[name[0]][f"{name[1]} [{name[2]}]"] = after / before
    for check, found in sorted(ratios.items()):
        where = max(found, key=lambda name: found[name])
        yield Errors(check, len(found), statistics.median(found.values()), found[where], where)
