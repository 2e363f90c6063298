"""Canonical calls of operations whose arguments or layout differ between frameworks.

They are for `unamp.adapter.kept_calls.Calls`. Each function takes the values of a framework's own
arguments. Canonical tensors have their channels first; canonical weights of a product or a
convolution have their outputs first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from unamp.adapter.framework_types import Tensor
from unamp.adapter.kept_calls import Arguments, Laid, one_number
from unamp.adapter.shadowing import LeftOut

if TYPE_CHECKING:
    import numpy as np

#: A number for all axes, or one for each.
PerAxis = int | Sequence[int]

#: How much padding there is: by a word, or the same on both sides, or a pair for each axis.
Padding = str | PerAxis | Sequence[Sequence[int]]

#: The canonical defaults of a norm's small number and of a leaky ReLU's slope.
_EPSILON, _SLOPE = 1e-5, 0.01


def refuse_unless(plain: bool, what: str) -> None:
    """Leave out a call with an option that no canonical argument stands for.

    Raises:
        LeftOut: unless `plain`; the message names the option.
    """
    if not plain:
        raise LeftOut(f"it has {what}, for which the canonical signature has no argument here")


def of_layer(function: Callable[..., Arguments], *names: str) -> Callable[..., Arguments]:
    """Return the signature of a layer from that of a function, which takes its attributes."""
    return lambda layer, inputs: function(inputs, *(getattr(layer, name) for name in names))


def one_input(x: Tensor, name: object = None) -> Arguments:
    """Return a call with one tensor."""
    return Arguments((x,))


def gelu(x: Tensor, tanh: bool) -> Arguments:
    """Return a GELU, by the approximation with tanh or exactly."""
    return Arguments((x,), {"approximate": "tanh"} if tanh else {})


def leaky_relu(x: Tensor, slope: float) -> Arguments:
    """Return a leaky ReLU."""
    return Arguments((x,), {} if slope == _SLOPE else {"negative_slope": float(slope)})


def softmax(x: Tensor, axis: object = -1) -> Arguments:
    """Return a softmax, or its logarithm, along one axis."""
    refuse_unless(type(axis) is int, "several axes")
    return Arguments((x,), {"dim": axis})


def reduction(x: Tensor, axis: PerAxis | None = None, keepdims: bool = False) -> Arguments:
    """Return a reduction along some axes; None stands for all.

    An empty list of axes means all to some frameworks, and none to others: it is refused.
    """
    refuse_unless(axis is None or isinstance(axis, int) or len(tuple(axis)) > 0, "no axes")
    dims = (
        {}
        if axis is None
        else {"dim": axis if isinstance(axis, int) else one_number(tuple(map(int, axis)))}
    )
    return Arguments((x,), {**dims, "keepdim": True} if keepdims else dims)


def product(
    a: Tensor, b: Tensor, transpose_a: bool = False, transpose_b: bool = False
) -> Arguments:
    """Return a product of matrices."""
    return Arguments((_transposed(a) if transpose_a else a, _transposed(b) if transpose_b else b))


def linear(x: Tensor, kernel: Tensor, bias: Tensor | None = None) -> Arguments:
    """Return a linear layer; the kernel has its inputs first."""
    refuse_unless(len(kernel.shape) == 2, "weights that are no matrix")
    return Arguments((x, _transposed(kernel), bias))


def embedding(index: Tensor, table: Tensor) -> Arguments:
    """Return an embedding."""
    return Arguments((index, table))


def layer_norm(
    x: Tensor, axes: int, weight: Tensor | None, bias: Tensor | None, epsilon: float
) -> Arguments:
    """Return a layer norm over the last axes, whose number is `axes`."""
    shape = [int(n) for n in x.shape[len(x.shape) - axes :]]
    return Arguments(
        (x, shape, weight, bias), {} if epsilon == _EPSILON else {"eps": float(epsilon)}
    )


def batch_norm(
    x: Tensor,
    mean: Tensor | None,
    variance: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    *,
    training: bool,
    momentum: float,
    epsilon: float,
    last: bool,
) -> Arguments:
    """Return a batch norm.

    `momentum` is the share of the new statistics, and `last` whether channels are last.
    """
    kwargs = {"training": bool(training), "momentum": float(momentum), "eps": float(epsilon)}
    x, result = (channels_first(x), _first) if last else (x, None)
    return Arguments((x, mean, variance, weight, bias), kwargs, result)


def channels_first(tensor: Tensor) -> Laid:
    """Return a tensor that has its channels last in the canonical order."""
    return Laid(tensor, _first)


def convolution(
    x: Tensor, kernel: Tensor, bias: Tensor | None = None, *,
    stride: PerAxis = 1, padding: Padding = 0, dilation: PerAxis = 1, groups: int = 1,
    last: bool = True,
) -> Arguments:  # fmt: skip
    """Return a convolution.

    Args:
        x: the input, with a batch.
        kernel: the weights: size, channels in, channels out where channels are last, else channels
            out, channels in, size.
        bias: the bias.
        stride, dilation: a number, or one for each axis.
        padding: likewise, or a pair for each axis, or ``"SAME"`` or ``"VALID"``. Padding that
            differs between sides is put into the input that is kept, as zeros.
        groups: the number of groups of channels.
        last: whether channels are last.
    """
    rank = len(kernel.shape) - 2
    refuse_unless(len(x.shape) == rank + 2, "an input without a batch")
    sizes, window = (x.shape[1:-1], kernel.shape[:-2]) if last else (x.shape[2:], kernel.shape[2:])
    strides, dilations = _each(stride, rank), _each(dilation, rank)
    pads = _pads(padding, sizes, window, strides, dilations)
    given = channels_first(x) if last else x
    sides = {n for pair in pads for n in pair}
    if len(sides) > 1:
        given = Laid(x, lambda numbers: _padded(_first(numbers) if last else numbers, pads))
    attributes = {
        "stride": (one_number(strides), 1),
        "padding": (sides.pop() if len(sides) == 1 else 0, 0),
        "dilation": (one_number(dilations), 1),
        "groups": (int(groups), 1),
    }
    named = {name: value for name, (value, plain) in attributes.items() if value != plain}
    return Arguments(
        (given, Laid(kernel, _outputs_first) if last else kernel, bias),
        named,
        _first if last else None,
    )


def pooling(
    x: Tensor,
    window: PerAxis,
    stride: PerAxis | None = None,
    padding: Padding = 0,
    *,
    last: bool = True,
) -> Arguments:
    """Return a pooling over windows; without a stride they do not overlap."""
    rank = len(x.shape) - 2
    sizes = x.shape[1:-1] if last else x.shape[2:]
    windows = _each(window, rank)
    strides = windows if stride is None else _each(stride, rank)
    pads = _pads(padding, sizes, windows, strides, (1,) * rank)
    refuse_unless(not any(n for pair in pads for n in pair), "a padding")
    named = {} if strides == windows else {"stride": one_number(strides)}
    return Arguments(
        (channels_first(x) if last else x, one_number(windows)), named, _first if last else None
    )


def _each(value: PerAxis, rank: int) -> tuple[int, ...]:
    """Return a number for each axis."""
    values = (value,) if isinstance(value, int) else tuple(map(int, value))
    refuse_unless(len(values) in (1, rank), f"{len(values)} numbers for {rank} axes")
    return values * rank if len(values) == 1 else values


def _pads(
    padding: Any,
    sizes: Sequence[int],
    window: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[tuple[int, int]]:
    """Return the zeros before and after each axis."""
    if isinstance(padding, str):
        if padding.upper() == "VALID":
            return [(0, 0)] * len(sizes)
        refuse_unless(padding.upper() == "SAME", f"the padding {padding}")
        found = []
        for size, extent, step, spread in zip(sizes, window, strides, dilations, strict=True):
            whole = max((-(-size // step) - 1) * step + (extent - 1) * spread + 1 - size, 0)
            found.append((whole // 2, whole - whole // 2))
        return found
    if isinstance(padding, (list, tuple)) and any(
        isinstance(each, (list, tuple)) for each in padding
    ):
        refuse_unless(len(padding) == len(sizes), "a padding that is not one of each axis")
        return [(int(before), int(after)) for before, after in padding]
    return [(n, n) for n in _each(padding, len(sizes))]


def _transposed(tensor: Tensor) -> Laid:
    return Laid(tensor, lambda numbers: numbers.swapaxes(-1, -2) if numbers.ndim > 1 else numbers)


def _first(numbers: np.ndarray) -> np.ndarray:
    return numbers.transpose(0, numbers.ndim - 1, *range(1, numbers.ndim - 1))


def _outputs_first(numbers: np.ndarray) -> np.ndarray:
    return numbers.transpose(numbers.ndim - 1, numbers.ndim - 2, *range(numbers.ndim - 2))


def _padded(numbers: np.ndarray, pads: Sequence[tuple[int, int]]) -> np.ndarray:
    import numpy as np

    return np.pad(numbers, [(0, 0), (0, 0), *pads])
