"""The table of a shadow: each operation's errors in a low dtype, by layer, the worst first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple

from unamp._grouping import grouped
from unamp.adapter.records import OpRecord, Shadow
from unamp.adapter.shadowing import NO_PRODUCT
from unamp.tracing.gradients import GradientLine
from unamp.tracing.tables import Table, percent, place


class ShadowLine(NamedTuple):
    """The errors of one operation in one layer, over all its runs there.

    Attributes:
        layer, op: as in `OpRecord`.
        error, subnormal, flushed: the largest; see `unamp.adapter.records.Shadow`.
        overflow: the number of numbers that overflow, in all runs together.
        overflowed: the largest share of a result's numbers that overflow.
        times: the number of second computations.
        left_out: the reason why the operation was left out; empty where it was computed.
    """

    layer: str | None
    op: str
    error: float = 0.0
    overflow: int = 0
    overflowed: float = 0.0
    subnormal: float = 0.0
    flushed: float = 0.0
    times: int = 0
    left_out: str = ""


def shadow_lines(records: Iterable[OpRecord]) -> list[ShadowLine]:
    """Return the error of each operation in each layer, the worst first.

    Operations that overflow come first, and operations that were left out come last.
    """
    shadowed = ((record, record.shadow) for record in records if record.shadow is not None)
    groups = grouped(
        shadowed, lambda pair: ShadowLine(pair[0].layer, pair[0].op, left_out=pair[1].left_out)
    )
    lines = [_filled(line, found) for line, found in groups.items()]
    return sorted(
        lines, key=lambda line: (bool(line.left_out), -line.overflowed, -line.error, -line.flushed)
    )


def _filled(line: ShadowLine, found: Sequence[tuple[OpRecord, Shadow]]) -> ShadowLine:
    return line._replace(
        error=max(shadow.error for _, shadow in found),
        overflow=sum(shadow.overflow for _, shadow in found),
        overflowed=max(
            shadow.overflow / prod(size or 1 for size in record.output_shape or ())
            for record, shadow in found
        ),
        subnormal=max(shadow.subnormal for _, shadow in found),
        flushed=max(shadow.flushed for _, shadow in found),
        times=len(found),
    )


def shadow_table(dtype: str, lines: Sequence[ShadowLine]) -> Table:
    """Return the lines as a table."""
    head = ("layer", "operation", f"error in {dtype}", "overflow", "subnormal", "to zero", "count")
    rows = [
        (
            line.layer or "-", line.op, f"{line.error:.2g}", str(line.overflow or "-"),
            percent(line.subnormal), percent(line.flushed), str(line.times),
        )
        for line in lines if not line.left_out
    ]  # fmt: skip
    return Table(head, rows, 2)


def left_out(lines: Iterable[ShadowLine | GradientLine]) -> list[str]:
    """Return a sentence with the reason for each line left out; one for all that are no product."""
    found = [line for line in lines if line.left_out]
    said = [
        f"{_place(line)}{f' ({line.times} times)' if line.times > 1 else ''}: {line.left_out}"
        for line in found
        if line.left_out != NO_PRODUCT
    ]
    others = sorted({line.op for line in found if line.left_out == NO_PRODUCT})
    return [*said, f"{', '.join(others)}: {NO_PRODUCT}"] if others else said


def _place(line: ShadowLine | GradientLine) -> str:
    parameter = line.parameter if isinstance(line, GradientLine) else ""
    return f"parameter {parameter}" if parameter else place(line.op, line.layer)


def worst(dtype: str, lines: Sequence[ShadowLine]) -> str | None:
    """Return a sentence about the operation that loses most; None where none was computed."""
    line = next((line for line in lines if not line.left_out), None)
    if line is None:
        return None
    lost = f"{line.overflow} numbers overflow" if line.overflow else f"error {line.error:.2g}"
    return f"loses most in {dtype}: {place(line.op, line.layer)}, {lost}"
