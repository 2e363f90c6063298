"""The functions of the networks on NumPy arrays, each with its pullback; see `tape`.

They compute in the dtype of their arguments. Every product of matrices, where sums are long, is
computed by `product`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from unamp_conformance.check.reference.tape import Array, Pullback

__all__ = [
    "add",
    "avg_pool2d",
    "binary_cross_entropy_with_logits",
    "cat",
    "conv2d",
    "conv_transpose2d",
    "cross_entropy",
    "div",
    "embedding",
    "exp",
    "gelu",
    "linear",
    "matmul",
    "max_pool2d",
    "mean",
    "mse_loss",
    "mul",
    "permute",
    "relu",
    "reshape",
    "scaled",
    "select",
    "shifted",
    "sigmoid",
    "sqrt",
    "sub",
    "tanh",
    "total",
]

Valued = tuple[Array, Pullback]

_erf = np.vectorize(math.erf, otypes=[np.float64])  # NumPy has none


def product(a: Array, b: Array) -> Array:
    """Return the product of matrices, or of stacks of them."""
    found: Array = a @ b
    return found


# --- elementwise ----------------------------------------------------------------------------------


def add(a: Array, b: Array) -> Valued:
    """Return the sum."""
    return a + b, lambda dy: (_narrowed(dy, a), _narrowed(dy, b))


def sub(a: Array, b: Array) -> Valued:
    """Return the difference."""
    return a - b, lambda dy: (_narrowed(dy, a), _narrowed(-dy, b))


def mul(a: Array, b: Array) -> Valued:
    """Return the product."""
    return a * b, lambda dy: (_narrowed(dy * b, a), _narrowed(dy * a, b))


def div(a: Array, b: Array) -> Valued:
    """Return the quotient."""
    y = a / b
    return y, lambda dy: (_narrowed(dy / b, a), _narrowed(-dy * y / b, b))


def _narrowed(dy: Array, a: Array) -> Array:
    """Return the cotangent of a broadcast array: the sum over the axes of the broadcast."""
    dy = dy.sum(tuple(range(dy.ndim - a.ndim)))
    found: Array = dy.sum(
        tuple(n for n in range(a.ndim) if a.shape[n] < dy.shape[n]), keepdims=True
    )
    return found


def scaled(a: Array, *, factor: float) -> Valued:
    """Return the product with a number."""
    return a * factor, lambda dy: (dy * factor,)


def exp(a: Array) -> Valued:
    """Return the exponential of the input."""
    y = np.exp(a)
    return y, lambda dy: (dy * y,)


def sqrt(a: Array, *, epsilon: float) -> Valued:
    """Return the square root of the input plus `epsilon`."""
    y = np.sqrt(a + epsilon)
    return y, lambda dy: (0.5 * dy / y,)


def relu(a: Array) -> Valued:
    """Return the input, and zero where it is negative."""
    return np.maximum(a, 0.0), lambda dy: (np.where(a > 0.0, dy, 0.0).astype(dy.dtype),)


def tanh(a: Array) -> Valued:
    """Return the hyperbolic tangent of the input."""
    y = np.tanh(a)
    return y, lambda dy: (dy * (1.0 - y * y),)


def sigmoid(a: Array) -> Valued:
    """Return the logistic function of the input."""
    y = 0.5 * (1.0 + np.tanh(0.5 * a))
    return y, lambda dy: (dy * y * (1.0 - y),)


def gelu(a: Array) -> Valued:
    """Return the input times the normal distribution's cumulative function.

    It is computed by erf, not approximated by tanh.
    """
    cumulative = 0.5 * (1.0 + _erf(a / math.sqrt(2.0)).astype(a.dtype))
    density = np.exp(-0.5 * a * a) / math.sqrt(2.0 * math.pi)
    return a * cumulative, lambda dy: (dy * (cumulative + a * density),)


# --- shapes ---------------------------------------------------------------------------------------


def reshape(a: Array, *, shape: Sequence[int]) -> Valued:
    """Return the same values in another shape."""
    return a.reshape(shape), lambda dy: (dy.reshape(a.shape),)


def permute(a: Array, *, dims: Sequence[int]) -> Valued:
    """Return the axes in another order."""
    return a.transpose(dims), lambda dy: (dy.transpose(np.argsort(dims)),)


def select(a: Array, *, dim: int, index: int | slice) -> Valued:
    """Return a part along an axis; the axis is gone where the index is one number."""
    place = (slice(None),) * dim + (index,)

    def pull(dy: Array) -> tuple[Array]:
        da = np.zeros(a.shape, dy.dtype)
        da[place] = dy
        return (da,)

    return a[place], pull


def cat(*parts: Array, dim: int) -> Valued:
    """Return arrays joined along an axis."""
    ends = np.cumsum([part.shape[dim] for part in parts])
    return np.concatenate(parts, dim), lambda dy: tuple(np.split(dy, ends[:-1], dim))


def embedding(index: Array, table: Array) -> Valued:
    """Return the rows of a table."""

    def pull(dy: Array) -> tuple[None, Array]:
        dtable = np.zeros(table.shape, dy.dtype)
        np.add.at(dtable, index, dy)
        return None, dtable

    return table[index], pull


# --- products -------------------------------------------------------------------------------------


def matmul(a: Array, b: Array) -> Valued:
    """Return the product of matrices, or of stacks of them of one shape."""
    return product(a, b), lambda dy: (
        product(dy, b.swapaxes(-1, -2)),
        product(a.swapaxes(-1, -2), dy),
    )


def linear(x: Array, w: Array, b: Array) -> Valued:
    """Return ``x @ w.T + b``, along the last axis."""

    def pull(dy: Array) -> tuple[Array, Array, Array]:
        rows = dy.reshape(-1, len(w))
        return product(dy, w), product(rows.T, x.reshape(len(rows), -1)), rows.sum(0)

    return product(x, w.T) + b, pull


def conv2d(x: Array, w: Array, *bias: Array, stride: int = 1, padding: int = 0) -> Valued:
    """Return the two-dimensional cross-correlation.

    ``w`` is output channels by input channels by height by width.
    """
    y = _correlated(x, w, stride, padding)

    def pull(dy: Array) -> tuple[Array, ...]:
        dx, dw = _spread(dy, w, stride, padding, x.shape), _kernels(x, dy, stride, padding, w.shape)
        return (dx, dw, *(dy.sum((0, 2, 3)) for _ in bias))

    return y + bias[0][:, None, None] if bias else y, pull


def conv_transpose2d(x: Array, w: Array, b: Array, *, stride: int = 1) -> Valued:
    """Apply the transpose of `conv2d` as a map of its input.

    ``w`` is input by output channels by height by width.
    """
    (n, _, *size), (_, channels, *kernel) = x.shape, w.shape
    shape = (n, channels, *((s - 1) * stride + k for s, k in zip(size, kernel, strict=True)))

    def pull(dy: Array) -> tuple[Array, Array, Array]:
        return _correlated(dy, w, stride, 0), _kernels(dy, x, stride, 0, w.shape), dy.sum((0, 2, 3))

    return _spread(x, w, stride, 0, shape) + b[:, None, None], pull


def _correlated(x: Array, w: Array, stride: int, padding: int) -> Array:
    """Return `conv2d` without a bias."""
    patches, (n, height, width) = _patches(x, w.shape[2:], stride, padding)
    return (
        product(patches, w.reshape(len(w), -1).T)
        .reshape(n, height, width, -1)
        .transpose(0, 3, 1, 2)
    )


def _kernels(x: Array, dy: Array, stride: int, padding: int, shape: Sequence[int]) -> Array:
    """Return the cotangent of the kernels of `_correlated`."""
    patches, _ = _patches(x, shape[2:], stride, padding)
    return product(dy.transpose(1, 0, 2, 3).reshape(shape[0], -1), patches).reshape(shape)


def _spread(dy: Array, w: Array, stride: int, padding: int, shape: Sequence[int]) -> Array:
    """Return the cotangent of the input of `_correlated`, of the given shape."""
    (n, channels, height, width), (rows, columns) = shape, dy.shape[2:]
    parts = product(dy.transpose(0, 2, 3, 1), w.reshape(len(w), -1)).reshape(
        n, rows, columns, channels, *w.shape[2:]
    )
    dx = np.zeros((n, channels, height + 2 * padding, width + 2 * padding), dy.dtype)
    for i, j in np.ndindex(*w.shape[2:]):
        dx[:, :, i : i + stride * rows : stride, j : j + stride * columns : stride] += parts[
            ..., i, j
        ].transpose(0, 3, 1, 2)
    return dx[:, :, padding : padding + height, padding : padding + width]


def _patches(
    x: Array, kernel: Sequence[int], stride: int, padding: int
) -> tuple[Array, tuple[int, int, int]]:
    """Return the windows that a kernel sees, one in each row.

    Return also the counts of images, rows and columns.
    """
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, tuple(kernel), (2, 3))[
        :, :, ::stride, ::stride
    ]
    n, _, height, width = windows.shape[:4]
    return windows.transpose(0, 2, 3, 1, 4, 5).reshape(n * height * width, -1), (n, height, width)


def max_pool2d(x: Array, *, size: int) -> Valued:
    """Return the largest of each square; of equal ones the first has the gradient."""
    squares = _squares(x, size)
    chosen = squares.argmax(-1)[..., None]

    def pull(dy: Array) -> tuple[Array]:
        parts = np.zeros(squares.shape, dy.dtype)
        np.put_along_axis(parts, chosen, dy[..., None], -1)
        return (_unsquared(parts, size),)

    return np.take_along_axis(squares, chosen, -1)[..., 0], pull


def avg_pool2d(x: Array, *, size: int) -> Valued:
    """Return the mean of each square."""
    squares = _squares(x, size)
    return squares.mean(-1), lambda dy: (
        _unsquared(np.broadcast_to(dy[..., None] / size**2, squares.shape), size),
    )


def _squares(x: Array, size: int) -> Array:
    """Return an image as squares side by side, the numbers of each along a last axis."""
    n, channels, height, width = x.shape
    split = x.reshape(n, channels, height // size, size, width // size, size).transpose(
        0, 1, 2, 4, 3, 5
    )
    return split.reshape(*split.shape[:4], -1)


def _unsquared(squares: Array, size: int) -> Array:
    """Undo `_squares`."""
    n, channels, rows, columns, _ = squares.shape
    split = squares.reshape(n, channels, rows, columns, size, size).transpose(0, 1, 2, 4, 3, 5)
    return split.reshape(n, channels, rows * size, columns * size)


# --- sums and losses ------------------------------------------------------------------------------


def total(a: Array, *, axes: tuple[int, ...]) -> Valued:
    """Return the sum along some axes, which keep a length of one."""
    return a.sum(axes, keepdims=True), lambda dy: (np.broadcast_to(dy, a.shape),)


def mean(a: Array, *, axes: tuple[int, ...]) -> Valued:
    """Return the mean along some axes, which keep a length of one."""
    y = a.mean(axes, keepdims=True)
    return y, lambda dy: (np.broadcast_to(dy * (y.size / a.size), a.shape),)


def shifted(a: Array) -> Valued:
    """Return the input minus the largest along the last axis, which changes no softmax."""
    return a - a.max(-1, keepdims=True), lambda dy: (dy,)


def cross_entropy(a: Array, label: Array) -> Valued:
    """Return the mean of minus the logarithm of the softmax at each row's label."""
    below, _ = shifted(a)
    logs = below - np.log(np.exp(below).sum(-1, keepdims=True))
    rows = np.arange(len(label))
    hit = np.zeros_like(a)
    hit[rows, label] = 1.0
    return -logs[rows, label].mean(), lambda dy: (dy * (np.exp(logs) - hit) / len(label), None)


def mse_loss(a: Array, target: Array) -> Valued:
    """Return the mean of the squared differences."""
    off = a - target
    return np.square(off).mean(), lambda dy: (2.0 / off.size * dy * off, None)


def binary_cross_entropy_with_logits(a: Array, target: Array) -> Valued:
    """Return the mean of ``log(1 + exp(a)) - target * a``."""
    y, _ = sigmoid(a)
    value = (np.maximum(a, 0.0) - target * a + np.log1p(np.exp(-np.abs(a)))).mean()
    return value, lambda dy: (dy * (y - target) / a.size, None)
