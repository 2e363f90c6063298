"""The record of one operation, without any framework or tensor in it.

An adapter reports it, and a trace keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from unamp.adapter.framework_types import Row
from unamp.dtypes import LOW_DTYPES, PRECISIONS, FloatFormat
from unamp.policy import Policy, Rule

#: The sizes of a tensor's dimensions; None for one that is not known.
Shape = tuple[int | None, ...]

#: The most numbers of a result that are kept, to compare them with those of another run.
SAMPLE = 64


class Underflow(NamedTuple):
    """The shares of a result's numbers that are so small that a low dtype loses digits of them.

    Attributes:
        dtype: the low dtype.
        subnormal: the share of numbers that are subnormal in it.
        flushed: the share of numbers that are not zero, and become zero in it. A result in that
            dtype does not show them.
    """

    dtype: str
    subnormal: float
    flushed: float


class Values(NamedTuple):
    """Statistics of an operation's result, for `unamp.trace(values=True)`.

    Attributes:
        shape: the shape of its first floating result; all but `nonfinite` is about that one.
        nonfinite: the count of numbers in all its floating results that are infinite or NaN.
        max_abs, mean, norm: the largest magnitude, the mean, and the root of the sum of squares, of
            its finite numbers.
        sample: up to `SAMPLE` of its numbers, evenly spaced, always the same places of one shape.
        underflow: for each low dtype, the shares of its numbers that are too small for it; empty in
            traces before version 3.
    """

    shape: tuple[int, ...]
    nonfinite: int
    max_abs: float
    mean: float
    norm: float
    sample: tuple[float, ...]
    underflow: tuple[Underflow, ...] = ()

    @classmethod
    def of(cls, shape: Sequence[int], results: Sequence[Row]) -> Values:
        """Return the statistics of floating results.

        Args:
            shape: the first one's shape.
            results: each as one row of float64 numbers: a NumPy array, or a tensor that is indexed
                and computed with like one.
        """
        infinity = float("inf")
        finite = [abs(numbers) < infinity for numbers in results]  # NaN is not less than anything
        first, count = results[0], len(results[0])
        kept = first[finite[0]]
        nonfinite = sum(
            len(numbers) - int(each.sum()) for numbers, each in zip(results, finite, strict=True)
        )
        size = min(count, SAMPLE)
        sample = first[[n * count // size for n in range(size)]].tolist()
        magnitudes = abs(kept)
        return cls(
            tuple(shape),
            nonfinite,
            float(magnitudes.max()) if len(kept) else 0.0,
            float(kept.mean()) if len(kept) else 0.0,
            _norm(kept),
            tuple(map(float, sample)),
            tuple(_underflow(PRECISIONS[low], magnitudes, max(count, 1)) for low in LOW_DTYPES),
        )

    def underflow_in(self, dtype: str) -> Underflow | None:
        """Return the share of the numbers too small for a low dtype; None where it is unknown."""
        return next((each for each in self.underflow if each.dtype == dtype), None)


def _norm(numbers: Row) -> float:
    largest = float(abs(numbers).max()) if len(numbers) else 0.0
    # Divided first, so that the square of a large number does not overflow.
    return largest * float(((numbers / largest) ** 2).sum()) ** 0.5 if largest else 0.0


def _underflow(low: FloatFormat, magnitudes: Row, count: int) -> Underflow:
    small = magnitudes[magnitudes < low.smallest_normal]
    small = small[small > 0.0]
    # half of the smallest number is a tie, and rounded to even: to zero
    flushed = int((small <= low.smallest_subnormal / 2).sum())
    return Underflow(low.name, (len(small) - flushed) / count, flushed / count)


class Shadow(NamedTuple):
    """An operation's own error in a low dtype, for `unamp.trace(shadow=...)`.

    The operation was computed a second time, low, from the same inputs. Errors that the inputs had
    already are no part of it.

    Attributes:
        dtype: the low dtype.
        error: the norm of the difference between the low result and the network's own, relative to
            the norm of the latter, over the numbers that are finite in both. It is about the first
            floating result, as all but `overflow` is.
        overflow: the count of numbers in all floating results that are finite in the network's own,
            and infinite or NaN in low.
        subnormal: the share of the low numbers that are subnormal; none where products were
            computed from float8, whose results are float32.
        flushed: the share of the low numbers that are zero, and not zero in the network's own.
        left_out: why it was not computed a second time; empty where it was.
    """

    dtype: str
    error: float = 0.0
    overflow: int = 0
    subnormal: float = 0.0
    flushed: float = 0.0
    left_out: str = ""

    @classmethod
    def of(cls, dtype: str, own: Sequence[Row], low: Sequence[Row]) -> Shadow:
        """Return the distance of low results from an operation's own; each as in `Values.of`."""
        if [len(numbers) for numbers in own] != [len(numbers) for numbers in low]:
            return cls(dtype, left_out=f"in {dtype} its result has another shape")
        infinity = float("inf")
        finite = [(abs(a) < infinity, abs(b) < infinity) for a, b in zip(own, low, strict=True)]
        overflow = sum(int((a & ~b).sum()) for a, b in finite)
        count, kept = max(len(own[0]), 1), finite[0][0] & finite[0][1]
        exact, rounded = own[0][kept], low[0][kept]
        size, moved = _norm(exact), _norm(rounded - exact)
        error = moved / size if size else float("inf") if moved else 0.0
        smallest_normal = PRECISIONS[dtype].smallest_normal if dtype in PRECISIONS else 0.0
        subnormal = int(((abs(rounded) < smallest_normal) & (rounded != 0)).sum())
        flushed = int(((rounded == 0) & (exact != 0)).sum())
        return cls(dtype, error, overflow, subnormal / count, flushed / count)


class Gradient(NamedTuple):
    """The gradient of an operation's result or of a parameter, for `unamp.trace(gradients=True)`.

    It is the gradient that a backward pass computed, with the loss scale in it.

    Attributes:
        dtype: its dtype; empty where it was left out.
        values: its statistics; None where it was left out.
        zeros: the share of its numbers that are zero.
        result: the number of the operation's floating result that it belongs to, from 0.
        record: the number of the operation among the trace's records, from 0; None for the gradient
            of a parameter.
        scale: the loss scale of the last loss that `unamp.GradScaler` scaled in the trace; None
            where it scaled none. Nothing here is divided by it.
        left_out: why it is not known; empty where it is.
        parameter: the parameter, by its layer and its name there (``"Net.encoder.0.weight"``);
            empty for the gradient of a result.
        step: the step of the trace in which it was computed, as in `OpRecord`.
    """

    dtype: str
    values: Values | None = None
    zeros: float = 0.0
    result: int = 0
    record: int | None = 0
    scale: float | None = None
    left_out: str = ""
    parameter: str = ""
    step: int = 0

    @property
    def layer_of_parameter(self) -> str | None:
        """Return the layer that holds the parameter; None for one outside of layers."""
        return self.parameter.rpartition(".")[0] or None

    @classmethod
    def of(cls, dtype: str, shape: Sequence[int], row: Row, result: int = 0) -> Gradient:
        """Return the statistics of a gradient; its numbers are one row, as in `Values.of`."""
        zeros = int((row == 0).sum()) / len(row) if len(row) else 0.0
        return cls(dtype, Values.of(shape, [row]), zeros, result)


class Call(NamedTuple):
    """The arguments of an operation, in its canonical signature, for `unamp.trace(keep=...)`.

    Attributes:
        file: the file with its tensors, in the trace's folder; empty where the call was left out.
        args, kwargs: the arguments. ``{"tensor": 0}`` stands for the file's first tensor,
            ``{"number": "inf"}`` for a number that JSON has no other word for.
        left_out: why the call was not kept; empty where it was.
    """

    file: str
    args: Sequence[object] = ()
    kwargs: Mapping[str, object] = {}
    left_out: str = ""


class OpRecord(NamedTuple):
    """One operation as it really ran, for `unamp.trace`.

    Attributes:
        op: its canonical name.
        native: the framework's own name of the function or layer that was called.
        rule: the rule in force.
        inputs: the dtypes of its floating tensor inputs, as the caller gave them.
        compute: the dtype that the framework's kernel was really given; None where it has no
            floating input.
        output: the dtype of its first floating result.
        emulated: whether the low dtype was emulated.
        layer: where in a network it ran: the network's class, then the names by which it holds its
            layers, with dots between (``"Net.encoder.0"``). None outside of layers.
        casts: the number of tensors that were cast for it because of the rule. An emulated
            operation's rounding counts as the casts that it stands for; a parameter's cast that was
            kept from before does not count.
        cast_bytes: the bytes that those casts read and wrote.
        framework: the framework that ran it.
        values: statistics of its result, where the trace was asked for them.
        policy: the policy in force; None outside of regions.
        input_shapes: the shapes of its floating inputs, in the order of `inputs`.
        output_shape: the shape of its first floating result; None where it has none.
        equation: the equation of an einsum, which its shapes do not tell; None for everything else.
        shadow: its own error in a low dtype, where the trace was asked for it.
        step: the step of the trace in which it ran, counted by calls of `unamp.tracing.Trace.step`.
        call: its arguments, where the trace was asked to keep them.
    """

    op: str
    native: str
    rule: Rule
    inputs: tuple[str, ...]
    compute: str | None
    output: str | None
    emulated: bool = False
    layer: str | None = None
    casts: int = 0
    cast_bytes: int = 0
    framework: str = ""
    values: Values | None = None
    policy: Policy | None = None
    input_shapes: tuple[Shape, ...] = ()
    output_shape: Shape | None = None
    equation: str | None = None
    shadow: Shadow | None = None
    step: int = 0
    call: Call | None = None

    @property
    def computed_in(self) -> str | None:
        """The dtype whose precision its numbers have: the low one where it was emulated.

        The low one is the dtype of its result or, where that is not low (argmax, or results that a
        policy widens), the policy's. None where it has no floating input.
        """
        if not self.emulated:
            return self.compute
        return (
            self.output if self.output in LOW_DTYPES or self.policy is None else self.policy.dtype
        )
