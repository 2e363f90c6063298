"""Records as rows of a table, for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from unamp._grouping import grouped
from unamp.adapter.records import OpRecord
from unamp.policy import Rule
from unamp.tracing.work import Work, share, summed, total_work


class Line(NamedTuple):
    """Records that agree in all columns of a table.

    Attributes:
        layer, op, rule, inputs, compute, output, emulated: as in `OpRecord`.
        times: the number of records.
        casts, cast_bytes: the sums over all records.
        nonfinite: the number of records whose result has an infinity or NaN; 0 where the trace
            kept no values.
        work: the products and bytes of the records whose shapes are known.
    """

    layer: str | None
    op: str
    rule: Rule
    inputs: tuple[str, ...]
    compute: str | None
    output: str | None
    emulated: bool
    times: int = 0
    casts: int = 0
    cast_bytes: int = 0
    nonfinite: int = 0
    work: Work = Work()


class Table(NamedTuple):
    """A table for people.

    Attributes:
        head: the names of the columns.
        rows: the cells of each row.
        words: the number of columns with words; they stand before the columns with numbers.
    """

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    words: int

    def __str__(self) -> str:
        return text_table(self.head, self.rows)


def summarised(records: Iterable[OpRecord]) -> list[Line]:
    """Return records with equal ones counted together, in the order in which each first ran."""
    lines = grouped(
        records, lambda r: Line(r.layer, r.op, r.rule, r.inputs, r.compute, r.output, r.emulated)
    )
    return [
        line._replace(
            times=len(equal),
            casts=sum(r.casts for r in equal),
            cast_bytes=sum(r.cast_bytes for r in equal),
            nonfinite=sum(1 for r in equal if r.values is not None and r.values.nonfinite),
            work=total_work(equal),
        )
        for line, equal in lines.items()
    ]


def summary_table(lines: Sequence[Line]) -> Table:
    """Return a summary as a table."""
    head = (
        "layer",
        "operation",
        "rule",
        "inputs",
        "computed in",
        "result",
        "casts",
        "moved",
        "work",
        "count",
    )
    works = shares(lines)
    rows = [
        (
            line.layer or "-", line.op, line.rule.value, dtypes(line.inputs),
            f"{line.compute or '-'}{' (emulated)' if line.emulated else ''}", line.output or "-",
            str(line.casts or "-"), size(line.cast_bytes) if line.casts else "-", percent(work),
            str(line.times),
        )
        for line, work in zip(lines, works, strict=True)
    ]  # fmt: skip
    return Table(head, rows, 6)


def place(op: str, layer: str | None) -> str:
    """Return an operation with the layer that it ran in, for people."""
    return f"{op} in {layer}" if layer else op


def text_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table as plain text, in aligned columns."""
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def dtypes(inputs: tuple[str, ...]) -> str:
    """Return input dtypes for people: more than three equal ones are counted."""
    if len(inputs) > 3 and len(set(inputs)) == 1:
        return f"{len(inputs)} x {inputs[0]}"
    return " ".join(inputs) or "-"


def shares(lines: Sequence[Line]) -> list[float]:
    """Return each line's share of the work of all lines; see `unamp.tracing.work.share`."""
    whole = summed(line.work for line in lines)
    return [share(line.work, whole) for line in lines]


def percent(part: float) -> str:
    """Return a share for people; a share of zero is a dash."""
    return f"{part:.1%}" if part else "-"


def count(number: float) -> str:
    """Return a number of things for people."""
    for unit in ("", " thousand", " million", " billion"):
        if number < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g} trillion"


def size(count: float) -> str:
    """Return a number of bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
