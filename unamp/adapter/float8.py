"""float8 as products of matrices use it: scaled, clamped, rounded and scaled back.

Numbers are rounded to nearest even, and all of it is in float32. A cast to float8 is not the same
everywhere: 500.0 is 448 in PyTorch and PaddlePaddle, and NaN in JAX, TensorFlow and ml_dtypes. So
no framework's cast is used here: numbers are rounded with operations on float32 that all frameworks
round alike, so that the bits are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from unamp._function_types import Args
from unamp.adapter.framework_types import Tensor
from unamp.adapter.open_traces import Emulation, traces
from unamp.adapter.shadowing import PRODUCTS, LeftOut
from unamp.dtypes import FLOAT8


class Format(NamedTuple):
    """A float8 format.

    Attributes:
        digits: the binary digits of a significand, the one that is not stored included.
        smallest_exponent, largest_exponent: of the powers of two between which normal numbers lie.
        largest: the largest number.
    """

    digits: int
    smallest_exponent: int
    largest_exponent: int
    largest: float


#: The formats, by their names: https://arxiv.org/abs/2209.05433, table 1. ml_dtypes and PyTorch
#: call the first one e4m3fn.
_FORMATS = {"float8_e4m3": Format(4, -6, 8, 448.0), "float8_e5m2": Format(3, -14, 15, 57344.0)}

_ROWS = "_rows"

#: The format of a gradient in the backward pass of a product, with one scale for the tensor.
GRADIENTS = _FORMATS["float8_e5m2"]

#: A tensor whose largest magnitude is smaller gets the scale of this one: torchao's EPS.
_SMALLEST_AMAX = 1e-12

#: Added to a float32 number below 2**22 and subtracted again, it leaves the nearest whole number,
#: ties to even.
_WHOLE = 2.0**23


class Arithmetic(NamedTuple):
    """The operations on float32 tensors that an adapter gives, besides Python's operators.

    Attributes:
        where: returns the second tensor's number where the first is true, else the third's.
        amax: returns the largest number along some axes, which stay with a length of 1; None is all
            of them.
    """

    where: Callable[[Tensor, Tensor, Tensor], Tensor]
    amax: Callable[[Tensor, Sequence[int] | None], Tensor]


def format_of(dtype: str) -> tuple[Format, bool]:
    """Return the format for a name of `unamp.dtypes.FLOAT8`, and whether each row has a scale."""
    assert dtype in FLOAT8
    return _FORMATS[dtype.removesuffix(_ROWS)], dtype.endswith(_ROWS)


@contextmanager
def in_float8(dtype: str, layers: Collection[str]) -> Iterator[Emulation]:
    """Have this thread's adapters compute the products of some layers from float8.

    A trace must be open, too.

    Args:
        dtype: the dtype of the factors, one of `unamp.dtypes.FLOAT8`.
        layers: the layers, as records name them.
    """
    before, traces.float8 = traces.float8, Emulation(dtype, frozenset(layers))
    try:
        yield traces.float8
    finally:
        traces.float8 = before


def rounded(x: Tensor, form: Format, where: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
    """Return float32 numbers rounded to the nearest number of a format, ties to even.

    A number beyond the largest becomes the largest. Infinities and NaN become NaN.
    """
    size = abs(x)
    zero = size * 0.0
    size = where(size > form.largest, zero + form.largest, size + zero)
    step = zero + 2.0 ** (form.smallest_exponent - form.digits + 1)
    for exponent in range(form.smallest_exponent + 1, form.largest_exponent + 1):
        step = where(size >= 2.0**exponent, step + step, step)
    nearest = ((size / step + _WHOLE) - _WHOLE) * step
    one = zero + 1.0
    # a product with the sign makes negative zeros, which Paddle's negation does not
    sign = where(x < 0.0, zero - one, one)
    return where(x == 0.0, x, nearest * sign)


def dequantized(
    x: Tensor, form: Format, axes: Sequence[int] | None, arithmetic: Arithmetic
) -> Tensor:
    """Return the float32 numbers that a tensor has after rounding to float8 with a scale.

    The largest magnitude becomes the format's largest number.

    Args:
        x: the tensor.
        form: the format.
        axes: the axes along which numbers share a scale: those that a product sums over. None: the
            whole tensor has one scale.
        arithmetic: the framework's operations.
    """
    where = arithmetic.where
    amax = arithmetic.amax(abs(x), axes)
    zero = amax * 0.0
    # Not a Python number divided by a tensor: PyTorch computes that as a reciprocal and a product,
    # which round twice.
    scale = where(
        amax > _SMALLEST_AMAX, (zero + form.largest) / amax, zero + form.largest / _SMALLEST_AMAX
    )
    return rounded(x * scale, form, where) / scale


def with_factors(op: str, args: Args, change: Callable[[int, Tensor], Tensor]) -> list[Any]:
    """Return the arguments of a product with its two factors changed.

    The factors of an einsum stand behind its equation.

    Args:
        op: the product, of `unamp.adapter.shadowing.PRODUCTS`.
        args: the arguments.
        change: returns the replacement of a factor, given its number, 0 or 1, and the factor.

    Raises:
        LeftOut: for an einsum without exactly two factors, and where there are too few arguments.
    """
    if op == "einsum":
        listed = len(args) == 2 and isinstance(args[1], (list, tuple))
        given = list(args[1] if listed else args[1:])
        if len(given) != 2:
            raise LeftOut(f"it multiplies {len(given)} tensors; float8 is for products of two")
        changed = [change(n, each) for n, each in enumerate(given)]
        return [args[0], changed] if listed else [args[0], *changed]
    places = PRODUCTS[op]
    if len(args) <= max(places):
        raise LeftOut("its two factors are not found among its arguments")
    return [change(places.index(n), each) if n in places else each for n, each in enumerate(args)]


def contracted(equation: str, dimensions: Sequence[int]) -> list[tuple[int, ...]]:
    """Return, for each of an einsum's two operands, the axes that are summed over.

    Args:
        equation: the equation, without spaces.
        dimensions: the number of axes of each operand.

    Raises:
        LeftOut: where no axis of one operand is summed over.
    """
    written, arrow, result = equation.partition("->")
    kept = set(result) if arrow else {letter for letter in written if written.count(letter) == 1}
    found = []
    for term, count in zip(written.split(","), dimensions, strict=True):
        before, _, after = term.partition("...")
        places = [
            *enumerate(before),
            *((count - len(after) + n, letter) for n, letter in enumerate(after)),
        ]
        found.append(tuple(n for n, letter in places if letter not in kept))
    if not all(found):
        raise LeftOut("it does not sum over an axis of each of the two, so that rows have no scale")
    return found
