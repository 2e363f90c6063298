"""A trace as one HTML page, without scripts: it works offline, in dark mode and on a phone."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import NamedTuple

from unamp._grouping import grouped
from unamp._pages import environment
from unamp.adapter.records import OpRecord
from unamp.tracing.as_json import Contents
from unamp.tracing.gradients import gradient_lines, gradient_remarks, gradient_table, low_of
from unamp.tracing.shadows import left_out, shadow_lines, shadow_table
from unamp.tracing.tables import Table, count, dtypes, size, summarised, summary_table
from unamp.tracing.work import Work, total_work

#: A sign for each precision, for readers who cannot tell its colour.
_SIGNS = {"float16": "◐", "bfloat16": "◑", "float32": "●", "float64": "■"}


class _Stripe(NamedTuple):
    """Consecutive operations that computed in one precision."""

    start: int
    width: int
    dtype: str
    title: str


class _Told(NamedTuple):
    """A table, and sentences about the operations that are not in it."""

    table: Table
    left_out: list[str]


def render(trace: Contents, title: str) -> str:
    """Return the page's HTML. All text of the trace is escaped: a layer may have any name."""
    found = environment("a trace's")
    found.filters.update(bytes=size, dtypes=dtypes, kind=_kind, zip=zip, work=_work)
    found.globals["signs"] = _SIGNS
    lines, lost = summarised(trace.records), shadow_lines(trace.records)
    kept = trace.gradients or []
    low = low_of(kept, None)
    gradients = gradient_lines(trace.records, kept, low)
    return found.get_template("trace.html").render(
        title=title,
        trace=trace,
        lines=lines,
        operations=summary_table(lines),
        work=total_work(trace.records),
        layers=grouped(lines, lambda line: line.layer),
        stripes=_stripes(trace.records),
        counts=Counter(record.compute or "none" for record in trace.records).most_common(),
        casts=sum(line.casts for line in lines),
        moved=sum(line.cast_bytes for line in lines),
        emulated=sum(line.times for line in lines if line.emulated),
        lost=_Told(shadow_table(trace.shadow, lost), left_out(lost))
        if trace.shadow and lost
        else None,
        gradients=_Told(gradient_table(low, gradients), left_out(gradients)) if gradients else None,
        said=gradient_remarks(trace.records, kept, low),
        nonfinite=[r for r in trace.records if r.values is not None and r.values.nonfinite],
    )


def _work(work: Work) -> str:
    return f"{count(work.products)} products, {size(work.bytes)}"


def _kind(dtype: str | None) -> str:
    """Return a precision as the page's style sheet names it."""
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
