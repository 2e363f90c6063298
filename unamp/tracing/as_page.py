"""A trace as one page: works offline, in the dark and on a phone, and runs no script."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, Protocol

from unamp._pages import environment
from unamp.adapter.records import Gradient, OpRecord
from unamp.tracing.gradients import GradientLine, gradient_remarks, low_of
from unamp.tracing.shadows import ShadowLine
from unamp.tracing.tables import Line, count, dtypes, percent, shares, size
from unamp.tracing.work import total_work

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["Traced", "render"]

#: What each precision looks like besides its colour, for those who cannot see colours.
_SIGNS = {"float16": "◐", "bfloat16": "◑", "float32": "●", "float64": "■"}


class Traced(Protocol):
    """The part of a trace that the page shows; see `unamp.tracing.Trace`."""

    records: list[OpRecord]
    gradients: list[Gradient]
    frameworks: dict[str, str]

    @property
    def keeps_values(self) -> bool:
        """Return whether it has statistics of every result."""

    @property
    def never_ran(self) -> tuple[str, ...]:
        """The operations that were allowed by name and never ran."""

    @property
    def shadow(self) -> str | None:
        """Return the low dtype in which operations were computed a second time."""

    @property
    def keeps_gradients(self) -> bool:
        """Return whether it has statistics of the gradients of results."""

    def gradient_summary(self) -> list[GradientLine]:
        """Return the gradients of each operation's results, the worst first."""

    def summary(self) -> list[Line]:
        """Return the records with equal ones counted together."""

    def shadow_summary(self) -> list[ShadowLine]:
        """Return the error of each operation in that dtype, the worst first."""


class _Stripe(NamedTuple):
    """Operations in a row that computed in one precision."""

    start: int
    width: int
    dtype: str
    title: str


class _Row(NamedTuple):
    """One layer, with what ran in it."""

    inside: str
    name: str
    lines: list[Line]


def render(trace: Traced, title: str) -> str:
    """Return the page's text. Everything from outside is escaped: a layer may have any name."""
    lines, low = trace.summary(), low_of(trace.gradients, None)
    return (
        _environment()
        .get_template("trace.html")
        .render(
            title=title,
            trace=trace,
            lines=lines,
            works=shares(lines),
            work=total_work(trace.records),
            rows=_rows(lines),
            stripes=_stripes(trace.records),
            shares=_shares(trace.records),
            casts=sum(line.casts for line in lines),
            moved=sum(line.cast_bytes for line in lines),
            emulated=sum(line.times for line in lines if line.emulated),
            lost=trace.shadow_summary() if trace.shadow else [],
            gradients=trace.gradient_summary() if trace.keeps_gradients else [],
            low=low,
            said=gradient_remarks(trace.records, trace.gradients, low) if trace.keeps_gradients else [],
            nonfinite=[r for r in trace.records if r.values is not None and r.values.nonfinite],
        )
    )


def _environment() -> Environment:
    found = environment("a trace's")
    found.filters.update(bytes=size, dtypes=dtypes, kind=_kind, percent=percent, zip=zip, count=count)
    found.globals["signs"] = _SIGNS
    return found


def _kind(dtype: str | None) -> str:
    """Return a precision as the page's colours know it."""
    return dtype if dtype in _SIGNS else "other"


def _stripes(records: list[OpRecord]) -> list[_Stripe]:
    found, start = [], 0
    for dtype, group in groupby(records, lambda record: record.compute):
        ops = list(group)
        named = ops[0].op if len(ops) == 1 else f"{ops[0].op} to {ops[-1].op}"
        what = f"{named} ({len(ops)}): {dtype or 'no floating input'}"
        found.append(_Stripe(start, len(ops), _kind(dtype), what))
        start += len(ops)
    return found


def _shares(records: Iterable[OpRecord]) -> dict[str, int]:
    """Return the number of operations that computed in each precision, most first."""
    counts: dict[str, int] = {}
    for record in records:
        counts[record.compute or "none"] = counts.get(record.compute or "none", 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def _rows(lines: list[Line]) -> list[_Row]:
    """Return the layers in the order in which they first ran something."""
    found: dict[str | None, _Row] = {}
    for line in lines:
        inside, dot, name = (line.layer or "outside of layers").rpartition(".")
        found.setdefault(line.layer, _Row(inside + dot, name, [])).lines.append(line)
    return list(found.values())
