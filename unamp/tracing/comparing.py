"""Two traces side by side: the results that moved, by how much, and whether precision explains it.

Made for a run in float32 and one in mixed precision, and for one network in two frameworks. The
ranking by relative error is that of `paddle.amp.debugging.compare_accuracy`:
https://www.paddlepaddle.org.cn/documentation/docs/en/api/paddle/amp/debugging/compare_accuracy_en.html
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from unamp._grouping import grouped
from unamp.adapter.records import OpRecord, Values
from unamp.dtypes import FLOAT32, LOW_DTYPES, PRECISIONS
from unamp.tracing.aligning import aligned
from unamp.tracing.layer_mapping import LayerMapping, propose
from unamp.tracing.recording import Trace
from unamp.tracing.tables import place, text_table
from unamp.vocabulary import vocabulary

#: How many times the root of the sum of the squares of all roundings so far an error may be: an
#: independent sum of roundings stays within with a probability of 1 - 2 exp(-8), which is 0.9993.
_CONFIDENCE = 4.0
#: How many roundings an operation counts as. A low one rounds its inputs and its result. In float32
#: numbers are added up in float32 itself, in an order of the machine's, which the conformance suite
#: counts as eight. Four times eight are the 16 units in the last place that OpenCL's table allows
#: to functions in float32 at most (`pow`, `erf`, `tgamma`): kernels stay within.
_ROUNDINGS_LOW, _ROUNDINGS = 2.0, 8.0


class Compared(NamedTuple):
    """One operation in two runs.

    Attributes:
        reference, other: its records.
        error: the relative error of the other's result: the larger of that of the numbers that both
            traces kept and that of the norms. Where the shapes differ only norms and largest
            magnitudes are compared. Infinite where one alone has infinities or NaN; None where
            there is no floating result.
        bound: the error that the roundings of both runs up to here explain; see `compare_traces`.
        position: where in the other run it ran: the first is 0.
    """

    reference: OpRecord
    other: OpRecord
    error: float | None
    bound: float
    position: int

    @property
    def within(self) -> bool:
        """Return whether the error is within the bound."""
        return self.error is None or self.error <= self.bound

    @property
    def renamed(self) -> bool:
        """Return whether the other run has another name for the layer."""
        return _own_name(self.reference.layer) != _own_name(self.other.layer)


class TraceComparison:
    """The findings of `compare_traces`.

    Attributes:
        operations: what ran in both, the largest error first.
        only_in_reference, only_in_other: what ran in one alone, and is compared with nothing.
        aside: what ran outside of layers and regions, in a run that has regions: clipping and the
            like. It is not compared.
    """

    def __init__(
        self,
        operations: list[Compared],
        only_in_reference: list[OpRecord],
        only_in_other: list[OpRecord],
        aside: list[OpRecord],
    ) -> None:
        self.operations = operations
        self.aside = aside
        self.only_in_reference = only_in_reference
        self.only_in_other = only_in_other

    @property
    def beyond(self) -> list[Compared]:
        """The operations whose error is beyond its bound, in order; the first is where it began."""
        return sorted((c for c in self.operations if not c.within), key=lambda c: c.position)

    @property
    def within(self) -> bool:
        """Return whether the precision of each operation explains its error."""
        return all(c.within for c in self.operations)

    def table(self, limit: int | None = None) -> str:
        """Return the ranking as plain text, with the verdict below.

        Args:
            limit: how many operations to show; None is all.
        """
        head: tuple[str, ...] = (
            "layer",
            "operation",
            "error",
            "allowed",
            "reference",
            "other",
            "largest",
            "largest in other",
        )
        rows = [_row(each) for each in self.operations[:limit]]
        if any(each.renamed for each in self.operations):
            head = (*head, "layer in other")
            rows = [
                (*row, each.other.layer or "-")
                for row, each in zip(rows, self.operations, strict=False)
            ]
        return "\n".join([text_table(head, rows), *self.remarks()])

    def remarks(self) -> list[str]:
        """Return sentences on the whole: operations in one run alone, verdict, first difference."""
        said = []
        for name, alone in (
            ("the reference", self.only_in_reference),
            ("the other", self.only_in_other),
        ):
            if alone:
                said.append(
                    f"only in {name}, compared with nothing: "
                    f"{', '.join(_counted(record.op for record in alone))}"
                )
        if self.aside:
            said.append(
                "outside of layers and regions, not compared: "
                f"{', '.join(_counted(r.op for r in self.aside))}"
            )
        count = f"{len(self.operations)} operations ran in both"
        if self.within:
            return [*said, f"{count}; the precision of each explains its error"]
        first = self.beyond[0]
        where = place(first.other.op, first.other.layer)
        how = f"error {first.error:.2e}, allowed {first.bound:.2e}"
        verdict = f"{len(self.beyond)} moved further than their precision explains"
        sides = (_side("the reference", first.reference), _side("the other", first.other))
        return [*said, f"{count}; {verdict}, first {where}: {how}", *sides]

    def to_data(self) -> dict[str, Any]:
        """Return the same as plain values, for JSON."""
        return {
            "within": self.within,
            "first": _first(self.beyond[0]) if self.beyond else None,
            "operations": [
                {
                    "op": c.reference.op,
                    "layer": c.reference.layer,
                    "layer_in_other": c.other.layer,
                    "error": finite(c.error),
                    "bound": c.bound,
                    "within": c.within,
                    "position": c.position,
                    "reference": c.reference.compute,
                    "other": c.other.compute,
                }
                for c in self.operations
            ],
            "only_in_reference": [{"op": r.op, "layer": r.layer} for r in self.only_in_reference],
            "only_in_other": [{"op": r.op, "layer": r.layer} for r in self.only_in_other],
            "aside": [{"op": r.op} for r in self.aside],
        }


def compare_traces(
    reference: Trace, other: Trace, *, layers: LayerMapping | None = None
) -> TraceComparison:
    """Hold two traces against each other, operation by operation.

    In each layer (by `layers`, else by its name without the class of the network), and outside of
    layers, the two runs are aligned by operation and shape, in the order in which they ran; where
    one has more than the other, by the size of the numbers too. What is left over then, because
    layers are named differently, is aligned in the same way. What has no partner is listed. So is
    what ran outside of layers and regions in a run that has regions: gradients are clipped there,
    each framework in its own way.

    An error is allowed to be 4 times the root of the sum of the squares of all roundings of both
    runs up to that operation: twice the unit roundoff for one that computed low (its inputs and its
    result), eight times for one in float32. That is how independent roundings add up (Higham and
    Mary, A new approach to probabilistic rounding error analysis, 2019,
    https://doi.org/10.1137/18M1226312); whatever is beyond it, the computation made larger itself.

    Args:
        reference: what the errors are relative to, the run in float32 say.
        other: the other run; both opened with ``values=True``, or read from JSON with values in it.
        layers: which layers are the same where their names differ, see `propose_layers`. A layer
            that it names is compared with its partners there and with nothing else.

    Raises:
        TypeError: for anything but traces and a mapping.
        ValueError: where a trace kept no values, and for a mapping that names a layer that is none.
    """
    check_traces(reference=reference, other=other)
    for name, each in (("reference", reference), ("other", other)):
        if not each.keeps_values:
            raise ValueError(
                f"{name} kept no values to compare; open it with unamp.trace(values=True)"
            )
    if layers is not None:
        if not isinstance(layers, LayerMapping):
            raise TypeError(
                f"layers must be an unamp.tracing.LayerMapping, not {type(layers).__name__}"
            )
        layers.check(reference.records, other.records)
    left, right = reference.records, other.records
    (in_left, aside_left), (in_right, aside_right) = _parted(left), _parted(right)
    found = _paired(
        [left[n] for n in in_left], [right[n] for n in in_right], layers or LayerMapping(())
    )
    pairs = [(in_left[i], in_right[j]) for i, j in found]
    roundings = _so_far(left), _so_far(right)
    compared = [
        Compared(
            a := left[i],
            b := right[j],
            _error(a.values, b.values),
            _bound(roundings[0][i] + roundings[1][j]),
            j,
        )
        for i, j in pairs
    ]
    ranked = sorted(compared, key=lambda c: -1.0 if c.error is None else c.error, reverse=True)
    paired_left, paired_right = {i for i, _ in pairs}, {j for _, j in pairs}
    return TraceComparison(
        ranked,
        [left[n] for n in in_left if n not in paired_left],
        [right[n] for n in in_right if n not in paired_right],
        aside_left + aside_right,
    )


def propose_layers(reference: Trace, other: Trace) -> LayerMapping:
    """Return the probable pairs of layers of two runs, to be corrected: see `LayerMapping.to_toml`.

    Two layers are held to be the same by the operations that both have, with results of the same
    size; by the order in which both runs had them; and, least, by their names.

    Args:
        reference: the one run.
        other: the other, of another framework say.

    Raises:
        TypeError: for anything but traces.
    """
    check_traces(reference=reference, other=other)
    left, right = reference.records, other.records
    return propose([left[n] for n in _parted(left)[0]], [right[n] for n in _parted(right)[0]])


def check_traces(**named: object) -> None:
    """Check arguments that are to be traces.

    Raises:
        TypeError: for anything else; the message names the argument.
    """
    for name, each in named.items():
        if not isinstance(each, Trace):
            raise TypeError(
                f"{name} must be an unamp.Trace, not {type(each).__name__}; "
                "read one with Trace.from_json(text)"
            )


def _parted(records: Sequence[OpRecord]) -> tuple[list[int], list[OpRecord]]:
    """Return the places of the records to compare, and the records left aside.

    Those outside of layers and regions are left aside where the run has regions.
    """
    regions = any(record.policy is not None for record in records)
    aside = [regions and record.policy is None and record.layer is None for record in records]
    return [n for n, out in enumerate(aside) if not out], [
        record for record, out in zip(records, aside, strict=True) if out
    ]


def _paired(
    left: Sequence[OpRecord], right: Sequence[OpRecord], layers: LayerMapping
) -> list[tuple[int, int]]:
    """Return the places of the operations that both runs have."""
    groups = layers.groups()
    by_layer = [_by_layer(run, of_run) for run, of_run in zip((left, right), groups, strict=True)]
    pairs: list[tuple[int, int]] = []
    for layer, places in by_layer[0].items():
        if layer in by_layer[1]:
            pairs += _aligned_at(left, right, places, by_layer[1][layer])
    taken = {i for i, _ in pairs}, {j for _, j in pairs}
    rest = [
        [n for n, record in enumerate(run) if n not in of and record.layer not in mapped]
        for run, of, mapped in zip((left, right), taken, groups, strict=True)
    ]
    return pairs + _aligned_at(left, right, *rest)


def _aligned_at(
    left: Sequence[OpRecord],
    right: Sequence[OpRecord],
    at_left: Sequence[int],
    at_right: Sequence[int],
) -> list[tuple[int, int]]:
    if [_key(left[n], 0.0) for n in at_left] == [_key(right[n], 0.0) for n in at_right]:
        # nothing to look for, and sizes could only mislead
        return list(zip(at_left, at_right, strict=True))
    # Of several that are alike, the one whose numbers are as large is meant: within 4 %, within a
    # factor of 2, at all.
    keyed = [
        ([_key(left[n], steps) for n in at_left], [_key(right[n], steps) for n in at_right])
        for steps in (16.0, 1.0, 0.0)
    ]
    return [(at_left[i], at_right[j]) for i, j in aligned(*keyed)]


def _by_layer(
    records: Sequence[OpRecord], groups: Mapping[str | None, int]
) -> dict[str | int | None, list[int]]:
    """Return the places of the records of each layer, by its group's number or its own name."""
    return grouped(
        range(len(records)), lambda n: groups.get(layer := records[n].layer, _own_name(layer))
    )


def _own_name(layer: str | None) -> str | None:
    """Return a layer's name without the class of the network."""
    return None if layer is None else layer.partition(".")[2]


def _key(record: OpRecord, steps: float) -> tuple[str, tuple[int, ...] | None, int]:
    """Return the operation, its result's sorted shape, and the magnitude of its numbers.

    The shape is sorted since axes have another order in other frameworks.

    Args:
        record: the operation.
        steps: in how many steps for each power of two; 0 leaves the size out.
    """
    values = record.values
    if values is None:
        return record.op, None, 0
    large = steps > 0.0 and 0.0 < values.norm < math.inf
    return (
        record.op,
        tuple(sorted(values.shape)),
        round(steps * math.log2(values.norm)) if large else 0,
    )


def _so_far(records: Sequence[OpRecord]) -> list[float]:
    """Return, for each record, the sum of the squares of all roundings up to it."""
    return list(accumulate(_rounding(record.compute) ** 2 for record in records))


def _rounding(compute: str | None) -> float:
    if compute is None:
        return 0.0
    count = _ROUNDINGS_LOW if compute in LOW_DTYPES else _ROUNDINGS
    return count * PRECISIONS.get(compute, PRECISIONS[FLOAT32]).unit_roundoff


def _bound(squares: float) -> float:
    return _CONFIDENCE * math.sqrt(squares)


def _error(a: Values | None, b: Values | None) -> float | None:
    if a is None or b is None:
        return None
    if bool(a.nonfinite) is not bool(b.nonfinite):
        return math.inf
    errors = [_relative(abs(a.norm - b.norm), a.norm)]
    if a.shape != b.shape:
        return max(*errors, _relative(abs(a.max_abs - b.max_abs), a.max_abs))
    both = [
        (x, y)
        for x, y in zip(a.sample, b.sample, strict=True)
        if math.isfinite(x) and math.isfinite(y)
    ]
    # The sample may have nothing but a ReLU's zeros in it; then the usual of the result counts.
    usual = a.norm / math.sqrt(math.prod(a.shape) or 1) * math.sqrt(len(both))
    errors.append(
        _relative(
            math.hypot(*(x - y for x, y in both)), max(math.hypot(*(x for x, _ in both)), usual)
        )
    )
    return max(errors)


def _relative(difference: float, to: float) -> float:
    return difference / to if to else math.inf if difference else 0.0


def _row(c: Compared) -> tuple[str, ...]:
    error = "-" if c.error is None else f"{c.error:.2e}"
    largest = (
        "-" if r.values is None else f"{r.values.max_abs:.4g}" for r in (c.reference, c.other)
    )
    allowed = f"{c.bound:.2e}" + ("" if c.within else " beyond")
    return (
        c.reference.layer or "-",
        c.reference.op,
        error,
        allowed,
        _dtype(c.reference),
        _dtype(c.other),
        *largest,
    )


def _first(c: Compared) -> dict[str, object]:
    """Return the first difference for JSON: the operation, and each side's place, dtype, rule."""
    sides = {
        name: _rule(record) for name, record in (("reference", c.reference), ("other", c.other))
    }
    return {"op": c.other.op, "error": finite(c.error), "bound": c.bound, **sides}


def _rule(record: OpRecord) -> dict[str, object]:
    reason = "no region was open"
    if record.policy is not None:
        # a trace may be of another process, with operations of its own
        known = record.op in vocabulary()
        reason = (
            record.policy.reason(record.op).origin
            if known
            else "an operation that is not registered here"
        )
    return {
        "layer": record.layer,
        "framework": record.framework,
        "native": record.native,
        "compute": record.compute,
        "rule": record.rule.value,
        "reason": reason,
    }


def _side(name: str, record: OpRecord) -> str:
    """Return a sentence about one side of a difference: its place, its dtype, and its rule."""
    said = _rule(record)
    ran = place(f"{record.framework} {record.native}".strip(), record.layer)
    return f"  {name}: {ran}, computed in {_dtype(record)}, rule {said['rule']}: {said['reason']}"


def bound_of(compute: str) -> float:
    """Return the error that the roundings of one operation explain, computed in a dtype."""
    return _bound(_rounding(compute) ** 2)


def finite(error: float | None) -> float | str | None:
    """Return an error as JSON can hold it."""
    return error if error is None or math.isfinite(error) else str(error)


def _dtype(record: OpRecord) -> str:
    return f"{record.compute or '-'}{' (emulated)' if record.emulated else ''}"


def _counted(names: Iterable[str]) -> list[str]:
    return [
        name if count == 1 else f"{name} ({count} times)" for name, count in Counter(names).items()
    ]
