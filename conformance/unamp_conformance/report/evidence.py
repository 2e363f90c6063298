"""The evidence of a check that went wrong: expectation, observation, error, and trace.

An error is shown against its bound, and a trace by its decisions. A results file may come from
anywhere, and its details are free: nothing here trusts their types.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from unamp_conformance.results import Result

__all__ = ["Decision", "Evidence", "Wrong", "evidence", "number", "ratio"]

#: A line of a trace: ``linear: LOW, float32 float32 -> bfloat16 -> bfloat16``.
_DECISION = re.compile(
    r"(?P<op>[^:]+): (?P<rule>[^,]+), (?P<inputs>.*?) -> (?P<compute>\S+) -> (?P<output>\S+)"
)

#: The details that are shown in a place of their own, or are of use to programs only.
_PLACED = frozenset({"wrong", "trace", "traceback", "error", "bound", "sample", "output bound"})


@dataclass(frozen=True)
class Wrong:
    """A complaint: what was expected of something, and what was seen instead."""

    of: str
    expected: str
    observed: str


@dataclass(frozen=True)
class Decision:
    """One line of a trace, and whether it is one of those complained about."""

    op: str
    rule: str
    inputs: str
    compute: str
    output: str
    suspect: bool = False


@dataclass(frozen=True)
class Evidence:
    """Everything that the page shows of one check that went wrong."""

    result: Result
    wrong: tuple[Wrong, ...] = ()
    error: float | None = None
    bound: float | None = None
    decisions: tuple[Decision, ...] = ()
    traceback: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    lists: tuple[tuple[str, tuple[str, ...]], ...] = field(default=())

    @property
    def ratio(self) -> float | None:
        """The error as a multiple of its bound."""
        return ratio(self.result)


def evidence(results: Iterable[Result], of: Iterable[Result]) -> Iterator[Evidence]:
    """Yield the evidence of each of some results.

    Args:
        results: the results to show.
        of: all results of their run. One check of a network records the decisions of its run; where
            that check is not shown itself, its trace explains the others.
    """
    shown = list(results)
    told = {r.key for r in shown}
    traces = {
        (r.subject, r.policy): r.details["trace"]
        for r in of
        if "trace" in r.details and r.key not in told
    }
    for result in shown:
        yield _evidence(
            result, result.details.get("trace", traces.get((result.subject, result.policy)))
        )


def number(value: object) -> float | None:
    """Return a finite number out of a results file; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer beyond float64
        return None


def ratio(result: Result) -> float | None:
    """Return a result's error over its bound.

    Infinite where the error is not finite, None where nothing was compared.
    """
    bound = number(result.details.get("bound"))
    if bound is None or bound <= 0.0 or "error" not in result.details:
        return None
    error = number(result.details["error"])
    return math.inf if error is None else error / bound


def _evidence(result: Result, trace: object) -> Evidence:
    details = result.details
    wrong = tuple(
        Wrong(*(str(row.get(k, "")) for k in ("of", "expected", "observed")))
        for row in _rows(details.get("wrong"))
    )
    rest = {str(name): value for name, value in details.items() if name not in _PLACED}
    return Evidence(
        result,
        wrong,
        number(details.get("error")),
        number(details.get("bound")),
        _decisions(trace, {row.of for row in wrong}),
        _lines(details.get("traceback")),
        tuple(
            (name, str(value))
            for name, value in rest.items()
            if not isinstance(value, (list, tuple))
        ),
        tuple(
            (name, _lines(value))
            for name, value in rest.items()
            if isinstance(value, (list, tuple))
        ),
    )


def _rows(value: object) -> list[Mapping[str, Any]]:
    return (
        [row for row in value if isinstance(row, dict)] if isinstance(value, (list, tuple)) else []
    )


def _lines(value: object) -> tuple[str, ...]:
    if isinstance(value, (list, tuple)):
        return tuple(map(str, value))
    return () if value is None else (str(value),)


def _decisions(trace: object, suspects: set[str]) -> tuple[Decision, ...]:
    found = []
    for line in _lines(trace):
        match = _DECISION.fullmatch(line)
        fields = (
            match.groupdict()
            if match
            else {"op": line, "rule": "", "inputs": "", "compute": "", "output": ""}
        )
        found.append(Decision(**fields, suspect=fields["op"] in suspects))
    return tuple(found)
