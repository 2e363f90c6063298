"""The table of gradients that a low dtype loses, or that are not finite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple

from unamp._grouping import grouped
from unamp.adapter.records import Gradient, OpRecord
from unamp.dtypes import LOW_DTYPES, low_dtype
from unamp.tracing.tables import Table, percent


class GradientLine(NamedTuple):
    """The gradients of a parameter, or of an operation's results in a layer, in one dtype.

    A line counts those of all backward passes.

    Attributes:
        layer, op: as in `OpRecord`; of a parameter, the layer that holds it, and no operation.
        dtype: the gradients' dtype.
        max_abs, zeros, subnormal, flushed: the largest of all gradients; see
            `unamp.adapter.records.Values` and `Underflow`.
        nonfinite: the number of infinities and NaN in all the gradients together.
        times: the number of gradients.
        left_out: the reason why the gradients are not known; empty where they are.
        parameter: the parameter, by its layer and its name there; empty for gradients of results.
    """

    layer: str | None
    op: str
    dtype: str
    max_abs: float = 0.0
    zeros: float = 0.0
    subnormal: float = 0.0
    flushed: float = 0.0
    nonfinite: int = 0
    times: int = 0
    left_out: str = ""
    parameter: str = ""


def low_of(gradients: Iterable[Gradient], dtype: str | None) -> str:
    """Return `dtype`, else the dtype of most low gradients, else float16."""
    if dtype is not None:
        return low_dtype(dtype)
    counts = Counter(each.dtype for each in gradients if each.dtype in LOW_DTYPES)
    return counts.most_common(1)[0][0] if counts else "float16"


def gradient_lines(
    records: Sequence[OpRecord], gradients: Iterable[Gradient], dtype: str
) -> list[GradientLine]:
    """Return the lines of gradients, by layer and operation, and by parameter.

    Gradients that are not finite come first, then the most underflow. Those left out come last.
    """

    def line_of(each: Gradient) -> GradientLine:
        op = "" if each.record is None else records[each.record].op
        return GradientLine(
            _layer(records, each), op, each.dtype, left_out=each.left_out, parameter=each.parameter
        )

    lines = [_filled(line, found, dtype) for line, found in grouped(gradients, line_of).items()]
    return sorted(
        lines,
        key=lambda line: (bool(line.left_out), not line.nonfinite, -line.subnormal - line.flushed),
    )


def _layer(records: Sequence[OpRecord], gradient: Gradient) -> str | None:
    return (
        gradient.layer_of_parameter if gradient.record is None else records[gradient.record].layer
    )


def _filled(line: GradientLine, found: Sequence[Gradient], dtype: str) -> GradientLine:
    values = [each.values for each in found if each.values is not None]
    lost = [under for each in values if (under := each.underflow_in(dtype)) is not None]
    return line._replace(
        max_abs=max((each.max_abs for each in values), default=0.0),
        zeros=max(each.zeros for each in found),
        subnormal=max((each.subnormal for each in lost), default=0.0),
        flushed=max((each.flushed for each in lost), default=0.0),
        nonfinite=sum(each.nonfinite for each in values),
        times=len(found),
    )


def gradient_table(dtype: str, lines: Sequence[GradientLine]) -> Table:
    """Return the lines as a table."""
    head = (
        "layer", "operation", "gradient", "largest", "zeros", f"subnormal in {dtype}", "to zero",
        "not finite", "count",
    )  # fmt: skip
    rows = [
        (
            line.parameter or line.layer or "-", line.op or "parameter", line.dtype,
            f"{line.max_abs:.2g}", percent(line.zeros), percent(line.subnormal),
            percent(line.flushed), str(line.nonfinite or "-"), str(line.times),
        )
        for line in lines if not line.left_out
    ]  # fmt: skip
    return Table(head, rows, 3)


def gradient_remarks(
    records: Sequence[OpRecord], gradients: Sequence[Gradient], dtype: str
) -> list[str]:
    """Return sentences: the first gradient not finite, the layers that lose most, a loss scale."""
    known = [each for each in gradients if each.values is not None]
    if not known:
        return [
            "no gradient of a result was seen: no backward pass ran while the trace was open, "
            "or nothing needed one"
        ]
    said = []
    if (
        place := next(
            (n for n, each in enumerate(known) if each.values and each.values.nonfinite), None
        )
    ) is not None:
        # A parameter's gradient ends a backward pass: no other gradient was computed from it.
        last = next((each for each in reversed(known[:place]) if each.record is not None), None)
        before = (
            ", the first of all"
            if last is None
            else f"; the one before it was {_named(records, last)}"
        )
        said.append(f"first gradient that is not finite: {_named(records, known[place])}{before}")
    lost = sorted(_by_layer(records, known, dtype).items(), key=lambda each: -each[1])
    worst = ", ".join(
        f"{layer or 'outside of layers'} {percent(share)}" for layer, share in lost[:3] if share
    )
    if worst:
        said.append(f"gradients too small for {dtype}, by layer: {worst}")
    scales = sorted({each.scale for each in known if each.scale is not None})
    if scales:
        said.append(
            "gradients are multiplied by the loss scale, "
            f"{' and '.join(f'{scale:g}' for scale in scales[:3])}"
        )
    return said


def _named(records: Sequence[OpRecord], gradient: Gradient) -> str:
    if gradient.record is None:
        return f"of parameter {gradient.parameter}"
    record = records[gradient.record]
    where = f"layer {record.layer}, " if record.layer else ""
    return f"of {where}operation {gradient.record + 1} ({record.op})"


def _by_layer(
    records: Sequence[OpRecord], gradients: Iterable[Gradient], dtype: str
) -> dict[str | None, float]:
    """Return, for each layer, the share of its gradients' numbers that underflow in a low dtype."""
    counts: dict[str | None, tuple[float, int]] = {}
    for each in gradients:
        assert each.values is not None
        size, under = prod(each.values.shape), each.values.underflow_in(dtype)
        lost, total = counts.get(layer := _layer(records, each), (0.0, 0))
        share = under.subnormal + under.flushed if under is not None else 0.0
        counts[layer] = lost + share * size, total + size
    return {layer: lost / total if total else 0.0 for layer, (lost, total) in counts.items()}
