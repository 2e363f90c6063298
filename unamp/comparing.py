"""Two traces side by side: which operation's result moved, and by how much.

Made for a run in float32 and one in mixed precision, and for one network in two frameworks. The ranking by relative error is
that of `paddle.amp.debugging.compare_accuracy`:
https://www.paddlepaddle.org.cn/documentation/docs/en/api/paddle/amp/debugging/compare_accuracy_en.html
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from unamp.records import OpRecord, Values
from unamp.tracing import Trace, text_table

__all__ = ["Compared", "TraceComparison", "compare_traces"]


class Compared(NamedTuple):
    """One operation in two runs.

    Attributes:
        reference, other: its records.
        error: the relative error of the other's result: the larger of that of the numbers that both traces kept and that of the
            norms. Where the shapes differ only norms and largest magnitudes are compared. Infinite where one alone has
            infinities or NaN; None where there is no floating result.
    """

    reference: OpRecord
    other: OpRecord
    error: float | None


class TraceComparison:
    """What `compare_traces` found.

    Attributes:
        operations: what ran in both, the largest error first.
        only_in_reference, only_in_other: what ran in one of them alone.
    """

    def __init__(self, operations: list[Compared], only_in_reference: list[OpRecord], only_in_other: list[OpRecord]) -> None:
        self.operations = operations
        self.only_in_reference = only_in_reference
        self.only_in_other = only_in_other

    def table(self, limit: int | None = None) -> str:
        """The ranking as plain text.

        Args:
            limit: how many operations to show; None is all.
        """
        head = ("layer", "operation", "error", "reference", "other", "largest", "largest in other")
        rows = [_row(each) for each in self.operations[:limit]]
        lines = [text_table(head, rows)]
        for name, alone in (("the reference", self.only_in_reference), ("the other", self.only_in_other)):
            if alone:
                lines.append(f"only in {name}: {', '.join(_counted(record.op for record in alone))}")
        return "\n".join(lines)

    def to_data(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return {
            "operations": [
                {
                    "op": c.reference.op,
                    "layer": c.reference.layer,
                    "error": c.error if c.error is None or math.isfinite(c.error) else str(c.error),
                    "reference": c.reference.compute,
                    "other": c.other.compute,
                }
                for c in self.operations
            ],
            "only_in_reference": [{"op": r.op, "layer": r.layer} for r in self.only_in_reference],
            "only_in_other": [{"op": r.op, "layer": r.layer} for r in self.only_in_other],
        }


def compare_traces(reference: Trace, other: Trace) -> TraceComparison:
    """Hold two traces against each other, operation by operation.

    An operation is matched with the same operation in the same layer that ran as often before. What finds no match like that
    (layers that are named differently) is matched in order.

    Args:
        reference: what the errors are relative to, the run in float32 say.
        other: the other run; both opened with ``values=True``, or read from JSON with values in it.

    Raises:
        TypeError: for anything but traces.
        ValueError: where a trace kept no values.
    """
    for name, each in (("reference", reference), ("other", other)):
        if not isinstance(each, Trace):
            raise TypeError(f"{name} must be an unamp.Trace, not {type(each).__name__}; read one with Trace.from_json(text)")
        if not each.keeps_values:
            raise ValueError(f"{name} kept no values to compare; open it with unamp.trace(values=True)")
    pairs, left, right = _matched(reference.records, other.records)
    compared = [Compared(a, b, _error(a.values, b.values)) for a, b in pairs]
    ranked = sorted(compared, key=lambda c: -1.0 if c.error is None else c.error, reverse=True)
    return TraceComparison(ranked, left, right)


def _matched(
    reference: list[OpRecord], other: list[OpRecord]
) -> tuple[list[tuple[OpRecord, OpRecord]], list[OpRecord], list[OpRecord]]:
    """Pairs in the reference's order, and what is left of each."""
    keyed = dict(_keyed(other))
    pairs, left = [], []
    for key, record in _keyed(reference):
        if key in keyed:
            pairs.append((record, keyed.pop(key)))
        else:
            left.append(record)
    more, left, right = _aligned(left, list(keyed.values()))
    return pairs + more, left, right


def _aligned(
    left: list[OpRecord], right: list[OpRecord]
) -> tuple[list[tuple[OpRecord, OpRecord]], list[OpRecord], list[OpRecord]]:
    """As `_matched`, by the order of the operations alone."""
    if not left or not right:
        return [], left, right
    import difflib  # slow to import, and only networks that name their layers differently need it

    aligned = difflib.SequenceMatcher(None, [r.op for r in left], [r.op for r in right], autojunk=False)
    places = [(block.a + n, block.b + n) for block in aligned.get_matching_blocks() for n in range(block.size)]
    taken_left, taken_right = {a for a, _ in places}, {b for _, b in places}
    return (
        [(left[a], right[b]) for a, b in places],
        [r for n, r in enumerate(left) if n not in taken_left],
        [r for n, r in enumerate(right) if n not in taken_right],
    )


def _keyed(records: list[OpRecord]) -> Iterator[tuple[tuple[str | None, str, int], OpRecord]]:
    """Records with their layer, without the class of the network, their operation, and how often it ran there before."""
    ran: dict[tuple[str | None, str], int] = {}
    for record in records:
        place = (None if record.layer is None else record.layer.partition(".")[2], record.op)
        ran[place] = ran.get(place, -1) + 1
        yield (*place, ran[place]), record


def _error(a: Values | None, b: Values | None) -> float | None:
    if a is None or b is None:
        return None
    if bool(a.nonfinite) is not bool(b.nonfinite):
        return math.inf
    errors = [_relative(abs(a.norm - b.norm), a.norm)]
    if a.shape != b.shape:
        return max(*errors, _relative(abs(a.max_abs - b.max_abs), a.max_abs))
    both = [(x, y) for x, y in zip(a.sample, b.sample, strict=True) if math.isfinite(x) and math.isfinite(y)]
    # The sample may have nothing but a ReLU's zeros in it; then what is usual in the whole result counts.
    usual = a.norm / math.sqrt(math.prod(a.shape) or 1) * math.sqrt(len(both))
    errors.append(_relative(math.hypot(*(x - y for x, y in both)), max(math.hypot(*(x for x, _ in both)), usual)))
    return max(errors)


def _relative(difference: float, to: float) -> float:
    return difference / to if to else math.inf if difference else 0.0


def _row(c: Compared) -> tuple[str, ...]:
    error = "-" if c.error is None else f"{c.error:.2e}"
    largest = ("-" if r.values is None else f"{r.values.max_abs:.4g}" for r in (c.reference, c.other))
    return c.reference.layer or "-", c.reference.op, error, _dtype(c.reference), _dtype(c.other), *largest


def _dtype(record: OpRecord) -> str:
    return f"{record.compute or '-'}{' (emulated)' if record.emulated else ''}"


def _counted(names: Iterable[str]) -> list[str]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return [name if count == 1 else f"{name} ({count} times)" for name, count in counts.items()]
