"""Compare two traces: the error of each result, and whether the precision explains it.

One run may be in float32 and the other in mixed precision, or one network may run in two
frameworks. The ranking by relative error is that of `paddle.amp.debugging.compare_accuracy`:
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

#: An error's bound, in roots of the sum of the squares of all roundings so far. A sum of
#: independent roundings stays within it with a probability of 1 - 2 exp(-8), which is 0.9993.
_CONFIDENCE = 4.0
#: The unit roundoffs that an operation counts as. A low operation rounds its inputs and its result.
#: A float32 operation adds up in float32, in an order that the machine chooses; the conformance
#: suite counts eight for it. Four times eight unit roundoffs are 16 units in the last place, the
#: most that OpenCL's table allows to a float32 function (`pow`, `erf`, `tgamma`).
_ROUNDINGS_LOW, _ROUNDINGS = 2.0, 8.0


class Compared(NamedTuple):
    """One operation in two runs.

    Attributes:
        reference, other: the operation's records.
        error: the relative error of the other run's result: of the numbers that both traces kept,
            or of the norm, whichever is larger. Where the shapes differ, only norms and largest
            magnitudes are compared. Infinite where only one result has infinities or NaN; None
            where there is no floating result.
        bound: the error that the roundings of both runs up to here explain; see `compare_traces`.
        position: the operation's position in the other run; the first is 0.
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
        operations: the operations of both runs, the largest error first.
        only_in_reference, only_in_other: the operations of one run only, compared with nothing.
        aside: the operations outside of layers and regions, such as gradient clipping, in a run
            that has regions. They are not compared.
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
        """The operations whose error exceeds its bound, in the order in which they ran."""
        return sorted((c for c in self.operations if not c.within), key=lambda c: c.position)

    @property
    def within(self) -> bool:
        """Return whether the precision of each operation explains its error."""
        return all(c.within for c in self.operations)

    def table(self, limit: int | None = None) -> str:
        """Return the ranking as plain text, with the verdict below.

        Args:
            limit: the number of operations to show; None shows all.
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
        """Return sentences: the operations of one run only, the verdict, the first difference."""
        said = []
        for what, alone in (
            ("only in the reference, compared with nothing", self.only_in_reference),
            ("only in the other, compared with nothing", self.only_in_other),
            ("outside of layers and regions, not compared", self.aside),
        ):
            if alone:
                said.append(f"{what}: {', '.join(_counted(record.op for record in alone))}")
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
        """Return the findings as plain values, for JSON."""
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
    """Compare two traces, operation by operation.

    Within each layer, and outside of layers, the two runs are aligned by operation and shape, in
    the order in which they ran. Where one run has more operations, the size of the numbers decides
    too. Layers are paired by `layers`, else by their names without the class of the network. The
    operations left, whose layers are named differently, are aligned in the same way. Operations
    without a partner are listed. So are operations outside of layers and regions, in a run that has
    regions: gradients are clipped there, by each framework in its own way.

    The bound of an error is 4 times the root of the sum of the squares of all roundings of both
    runs up to the operation. One that computed low counts 2 unit roundoffs (its inputs and its
    result), one in float32 counts 8. Independent roundings add up in this way (Higham and Mary, A
    new approach to probabilistic rounding error analysis, 2019,
    https://doi.org/10.1137/18M1226312). The computation itself enlarged an error beyond the bound.

    Args:
        reference: the run that errors are relative to, such as the one in float32.
        other: the other run. Both traces were opened with ``values=True``, or read from such JSON.
        layers: the layers that are the same where their names differ; see `propose_layers`. A layer
            in it is compared with its partners there, and with no other layer.

    Raises:
        TypeError: for anything but traces and a mapping.
        ValueError: where a trace kept no values, or lacks a layer that the mapping names.
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
    """Return a proposal of the layers that are the same in two runs, for a person to correct.

    Two layers are probably the same if they have the same operations with results of the same size,
    in the same order. Their names count least. `LayerMapping.to_toml` writes the proposal.

    Args:
        reference: one run.
        other: the other run, of another framework for example.

    Raises:
        TypeError: for anything but traces.
    """
    check_traces(reference=reference, other=other)
    left, right = reference.records, other.records
    return propose([left[n] for n in _parted(left)[0]], [right[n] for n in _parted(right)[0]])


def check_traces(**named: object) -> None:
    """Check that arguments are traces.

    Raises:
        TypeError: where one is not; the message names the argument.
    """
    for name, each in named.items():
        if not isinstance(each, Trace):
            raise TypeError(
                f"{name} must be an unamp.Trace, not {type(each).__name__}; "
                "read one with Trace.from_json(text)"
            )


def _parted(records: Sequence[OpRecord]) -> tuple[list[int], list[OpRecord]]:
    """Return the positions of the records to compare, and the records left aside.

    In a run that has regions, records outside of layers and regions are left aside.
    """
    regions = any(record.policy is not None for record in records)
    aside = [regions and record.policy is None and record.layer is None for record in records]
    return [n for n, out in enumerate(aside) if not out], [
        record for record, out in zip(records, aside, strict=True) if out
    ]


def _paired(
    left: Sequence[OpRecord], right: Sequence[OpRecord], layers: LayerMapping
) -> list[tuple[int, int]]:
    """Return the positions, in both runs, of each operation that both have."""
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
        # the runs agree: to match them by the size of their numbers could only mislead
        return list(zip(at_left, at_right, strict=True))
    # Of several operations that are alike, the partner is the one with numbers of the same size:
    # within 4 %, else within a factor of 2, else any.
    keyed = [
        ([_key(left[n], steps) for n in at_left], [_key(right[n], steps) for n in at_right])
        for steps in (16.0, 1.0, 0.0)
    ]
    return [(at_left[i], at_right[j]) for i, j in aligned(*keyed)]


def _by_layer(
    records: Sequence[OpRecord], groups: Mapping[str | None, int]
) -> dict[str | int | None, list[int]]:
    """Return the positions of each layer's records, by the layer's group or its own name."""
    return grouped(
        range(len(records)), lambda n: groups.get(layer := records[n].layer, _own_name(layer))
    )


def _own_name(layer: str | None) -> str | None:
    """Return a layer's name without the class of the network."""
    return None if layer is None else layer.partition(".")[2]


def _key(record: OpRecord, steps: float) -> tuple[str, tuple[int, ...] | None, int]:
    """Return the operation, its result's sorted shape, and the rounded logarithm of its norm.

    The shape is sorted because frameworks order axes differently.

    Args:
        record: the operation.
        steps: the steps of the logarithm for each power of two; 0 leaves the norm out.
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
    # A sample may have only a ReLU's zeros; the usual size of the result's numbers counts then.
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
    """Return a difference for JSON: its operation, and the layer, dtype and rule in each run."""
    sides = {
        name: _rule(record) for name, record in (("reference", c.reference), ("other", c.other))
    }
    return {"op": c.other.op, "error": finite(c.error), "bound": c.bound, **sides}


def _rule(record: OpRecord) -> dict[str, object]:
    reason = "no region was open"
    if record.policy is not None:
        # the trace of another process may have operations that are registered only there
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
    """Return one run's side of a difference as a line: the layer, the dtype, and the rule."""
    said = _rule(record)
    ran = place(f"{record.framework} {record.native}".strip(), record.layer)
    return f"  {name}: {ran}, computed in {_dtype(record)}, rule {said['rule']}: {said['reason']}"


def bound_of(compute: str) -> float:
    """Return the error that the roundings of one operation explain, if it runs in `compute`."""
    return _bound(_rounding(compute) ** 2)


def finite(error: float | None) -> float | str | None:
    """Return an error for JSON: as text where it is infinite or NaN."""
    return error if error is None or math.isfinite(error) else str(error)


def _dtype(record: OpRecord) -> str:
    return f"{record.compute or '-'}{' (emulated)' if record.emulated else ''}"


def _counted(names: Iterable[str]) -> list[str]:
    return [
        name if count == 1 else f"{name} ({count} times)" for name, count in Counter(names).items()
    ]
