"""Comparisons of frameworks: the same decisions, and the same numbers.

The networks are identical, and so is the policy.

One framework on two devices is compared with itself in the same way. Operations are compared, too:
outside any region each is the function that its canonical signature says; a framework with another
function has a known gap.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from operator import sub
from typing import Any

from unamp_conformance import gaps
from unamp_conformance.gaps import KnownGap
from unamp_conformance.results import FrameworkRun, Result
from unamp_conformance.subjects import is_absent

__all__ = ["NEEDED", "NEEDED_OF_OPERATIONS", "agreement", "decided", "pairs"]

#: The kinds of check whose observations are compared, of networks and of operations.
NEEDED = ("decisions", "outputs")
NEEDED_OF_OPERATIONS = ("coverage",)

#: The relative distance allowed between results of the same computation in float32: the order of
#: summation differs, and little else.
_FLOAT32 = 1e-5

#: The distance allowed between results of the same operation, relative to the largest number. It is
#: enough for approximations, and too little for another function.
_SAME_FUNCTION = 1e-3


def pairs(runs: Sequence[FrameworkRun]) -> tuple[FrameworkRun, ...]:
    """Compare every two frameworks on one device, and every framework on two.

    Each comparison is returned as a run.
    """
    found = []
    # devices that are not here have decisions alone, which are checked already
    ran = [run for run in runs if not is_absent(run.device)]
    for first, second in combinations(ran, 2):
        same_framework, same_device = (
            first.framework == second.framework,
            first.device == second.device,
        )
        if (same_framework or same_device) and (results := tuple(agreement(first, second))):
            names, versions = (
                f"{first.framework} and {second.framework}",
                f"{first.version} and {second.version}",
            )
            devices = first.device if same_device else f"{first.device} and {second.device}"
            found.append(FrameworkRun(names, versions, devices, "finished", results))
    return tuple(found)


def _gaps(run: FrameworkRun) -> list[KnownGap]:
    return [
        gap
        for gap in gaps.that_hold(run.framework, run.version, run.facts)
        if gap.check == "agreement"
    ]


def agreement(
    first: FrameworkRun, second: FrameworkRun, *, decisions: bool = True
) -> Iterator[Result]:
    """Yield a result for every network and policy that both ran, and for every operation.

    A result that either already got wrong is not compared; nor is the preset ``native``, which
    means each framework's own lists. Where both are known to compute another function than the
    canonical one, there is no result.

    Args:
        first, second: the runs.
        decisions: compare decisions too, not only numbers.
    """
    # A framework that differs from others does so on all of its devices, which agree.
    ours, theirs = (
        ([], []) if first.framework == second.framework else (_gaps(first), _gaps(second))
    )
    for result in (*_networks(first, second, decisions), *_operations(first, second)):
        covering = [
            gap
            for known in (ours, theirs)
            if (gap := next((g for g in known if g.covers(result)), None))
        ]
        if len(covering) < 2:
            yield gaps.mark(result, covering[0]) if covering else result


def _operations(first: FrameworkRun, second: FrameworkRun) -> Iterator[Result]:
    ours, theirs = _samples(first), _samples(second)
    for op in ours:
        if op not in theirs:
            continue
        counts, (x, y) = (
            (ours[op]["count"], theirs[op]["count"]),
            (ours[op]["sample"], theirs[op]["sample"]),
        )
        if counts[0] == counts[1] and len(x) != len(y):
            yield Result(
                "agreement",
                op,
                "-",
                first.device,
                "not run",
                "not compared; nothing is told of both",
            )
            continue
        if counts[0] != counts[1]:
            ours_name, theirs_name = _names(first, second)
            message, details = (
                f"{counts[0]} numbers on {ours_name}, {counts[1]} on {theirs_name}",
                {},
            )
        else:
            apart = max(map(abs, map(sub, x, y)), default=0.0) / (
                max(map(abs, (*x, *y)), default=0.0) or 1.0
            )
            details = {"error": apart, "bound": _SAME_FUNCTION}
            message = (
                f"another function: {apart:.3g} apart outside any region"
                if not apart <= _SAME_FUNCTION
                else ""
            )
        yield Result(
            "agreement",
            op,
            "-",
            first.device,
            "failed" if message else "passed",
            message,
            details=details,
        )


def _samples(run: FrameworkRun) -> Mapping[str, Mapping[str, Any]]:
    """Return the numbers of each operation's example call, where the suite can look at them."""
    covered = (r for r in run.results if r.check in NEEDED_OF_OPERATIONS and r.status == "passed")
    return {r.subject: r.details for r in covered if "sample" in r.details}


def _networks(first: FrameworkRun, second: FrameworkRun, decisions: bool) -> Iterator[Result]:
    ours, theirs = _observed(first), _observed(second)
    for subject, policy in ours:
        if (subject, policy) not in theirs or policy.endswith(" native"):
            continue
        a, b = ours[subject, policy], theirs[subject, policy]
        if wrong := [
            f"{r.check}: {r.status}" for r in (*a.values(), *b.values()) if r.status != "passed"
        ]:
            yield Result(
                "agreement",
                subject,
                policy,
                first.device,
                "not run",
                f"not compared; {', '.join(wrong)}",
            )
            continue
        complaints = _decisions(a, b, first, second) if decisions else []
        details = _numbers(a, b, exact=policy.startswith("O0 "))
        if not details and not (decisions and {"decisions"} <= a.keys() & b.keys()):
            yield Result(
                "agreement",
                subject,
                policy,
                first.device,
                "not run",
                "not compared; nothing is told of both",
            )
            continue
        if details and not details["error"] <= details["bound"]:
            complaints.append(
                "outputs are {error:.3g} apart, the bound is {bound:.3g}".format(**details)
            )
        status = "failed" if complaints else "passed"
        yield Result(
            "agreement",
            subject,
            policy,
            first.device,
            status,
            "; ".join(complaints),
            details=details,
        )


def _observed(run: FrameworkRun) -> Mapping[tuple[str, str], dict[str, Result]]:
    found: dict[tuple[str, str], dict[str, Result]] = defaultdict(dict)
    for result in run.results:
        if result.check in NEEDED:
            found[result.subject, result.policy][result.check] = result
    return found


def _decisions(
    a: Mapping[str, Result], b: Mapping[str, Result], first: FrameworkRun, second: FrameworkRun
) -> list[str]:
    """Return complaints about operations that both recorded under another rule or dtype."""
    if "decisions" not in a or "decisions" not in b:
        return []
    ours, theirs = decided(a["decisions"]), decided(b["decisions"])
    here, there = _names(first, second)
    return [
        f"{op} is {' or '.join(sorted(ours[op]))} on {here}, "
        f"{' or '.join(sorted(theirs[op]))} on {there}"
        for op in sorted(ours.keys() & theirs.keys())
        if ours[op] != theirs[op]
    ]


def _names(first: FrameworkRun, second: FrameworkRun) -> tuple[str, str]:
    """Return the names that tell two runs apart: their frameworks, or one framework's devices."""
    if first.framework == second.framework:
        return first.device, second.device
    return first.framework, second.framework


def decided(result: Result) -> Mapping[str, set[str]]:
    """Return the rules of every operation in a trace, with the dtypes of its results."""
    found: dict[str, set[str]] = defaultdict(set)
    for line in result.details.get("trace", ()):
        op, _, rest = line.partition(": ")
        rule, _, flow = rest.partition(", ")
        found[op].add(f"{rule} -> {flow.rpartition(' -> ')[2]}")
    return found


def _numbers(a: Mapping[str, Result], b: Mapping[str, Result], *, exact: bool) -> dict[str, Any]:
    """Return the relative distance of outputs, and the one allowed.

    Empty where none can be compared.
    """
    if "outputs" not in a or "outputs" not in b:
        return {}
    ours, theirs = a["outputs"].details, b["outputs"].details
    x, y = (details.get("sample") or [] for details in (ours, theirs))
    if not x or not y:
        return {}
    bounds = [details.get("output bound", details.get("bound")) for details in (ours, theirs)]
    told = [bound for bound in bounds if isinstance(bound, int | float)]
    if len(told) < len(bounds) and not exact:  # a file from elsewhere may leave one out
        return {}
    bound = _FLOAT32 if exact else max(map(float, told))
    apart = (
        math.dist(x, y) / (max(math.hypot(*x), math.hypot(*y)) or 1.0) if len(x) == len(y) else 1.0
    )
    return {"error": apart, "bound": bound}
