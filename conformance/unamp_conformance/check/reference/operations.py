"""NumPy as one more framework: the operations of the networks, and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from unamp.vocabulary import vocabulary
from unamp_conformance.check.reference import functions as fn
from unamp_conformance.check.reference.tape import (
    Array,
    Change,
    Function,
    Tensor,
    apply,
    gradients,
    leaf,
    same,
)

__all__ = ["Buffer", "NumpyOperations"]


class Buffer:
    """A running statistic, which `batch_norm` changes."""

    def __init__(self, array: Array) -> None:
        self.array = array


class NumpyOperations:
    """The networks' operations, in the dtype of the arrays; see `unamp.adapter.Operations`.

    Args:
        change: changes every given tensor, every result of an operation, and every cotangent of
            either; by default nothing. Results of operations that keep their meaning stay as they
            are.
        unbiased: whether running variances are those of a sample (divided by ``n - 1``).
    """

    def __init__(self, change: Change = same, *, unbiased: bool = True) -> None:
        self._change, self._unbiased = change, unbiased

    def names(self) -> frozenset[str]:
        """See `unamp.adapter.Operations.names`."""
        return frozenset(_OPERATIONS) | _COMPOSED

    def __getitem__(self, op: str) -> Callable[..., Any]:
        """See `unamp.adapter.Operations.__getitem__`."""
        if op in _COMPOSED:
            composed: Callable[..., Any] = getattr(self, f"_{op}")
            return composed
        change = same if vocabulary()[op].keeps_its_meaning else self._change
        return partial(_OPERATIONS[op], partial(apply, change=change))

    def tensor(self, array: Array, *, device: str = "cpu", requires_grad: bool = False) -> Tensor:
        """See `unamp.adapter.Operations.tensor`."""
        return leaf(array, self._change if array.dtype.kind == "f" else same)

    def buffer(self, array: Array, *, device: str = "cpu") -> Buffer:
        """See `unamp.adapter.Operations.buffer`."""
        return Buffer(array)

    def numpy(self, tensor: Tensor | Buffer | Array) -> Array:
        """See `unamp.adapter.Operations.numpy`."""
        return tensor if isinstance(tensor, np.ndarray) else tensor.array

    def dtype(self, tensor: Tensor | Buffer | Array) -> str:
        """See `unamp.adapter.Operations.dtype`."""
        return self.numpy(tensor).dtype.name

    def value_and_grad(
        self, function: Callable[..., Tensor], inputs: Sequence[Tensor], *, loss_scale: float = 1.0
    ) -> tuple[Tensor, list[Array | None]]:
        """See `unamp.adapter.Operations.value_and_grad`."""
        value = function(*inputs)
        return value, gradients(value, inputs, loss_scale)

    def _batch_norm(
        self,
        x: Tensor,
        mean: Buffer,
        variance: Buffer,
        weight: Tensor,
        bias: Tensor,
        *,
        training: bool,
        momentum: float,
    ) -> Tensor:
        if not training:
            raise NotImplementedError("no network of the suite normalises by running statistics")
        weight, bias = (
            apply(fn.reshape, parameter, shape=(-1, 1, 1)) for parameter in (weight, bias)
        )
        result, *observed = self._normalised(x, weight, bias, axes=(0, 2, 3))
        size = x.array.size // mean.array.size
        for kept, seen, factor in zip(
            (mean, variance), observed, (1.0, size / (size - self._unbiased)), strict=True
        ):
            kept.array = self._change(
                (1.0 - momentum) * kept.array + momentum * factor * seen.array.ravel()
            )
        return result

    def _layer_norm(self, x: Tensor, shape: Sequence[int], weight: Tensor, bias: Tensor) -> Tensor:
        return self._normalised(x, weight, bias, axes=(-1,))[0]

    def _normalised(
        self, x: Tensor, weight: Tensor, bias: Tensor, axes: tuple[int, ...]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the result, the mean and the variance."""
        mean = apply(fn.mean, x, axes=axes, change=self._change)
        centred = apply(fn.sub, x, mean)
        variance = apply(fn.mean, apply(fn.mul, centred, centred), axes=axes, change=self._change)
        normal = apply(fn.div, centred, apply(fn.sqrt, variance, epsilon=1e-5))
        return (
            apply(fn.add, apply(fn.mul, normal, weight), bias, change=self._change),
            mean,
            variance,
        )

    def _softmax(self, a: Tensor, dim: int) -> Tensor:
        powers = apply(fn.exp, apply(fn.shifted, a))
        return apply(
            fn.div,
            powers,
            apply(fn.total, powers, axes=(-1,), change=self._change),
            change=self._change,
        )

    def _lstm(
        self, x: Tensor, h: Tensor, c: Tensor, *weights: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run one layer in one direction.

        A step's state is changed like any other result; values inside a step are not.
        """
        w_ih, w_hh, b_ih, b_hh = weights
        h, c = (apply(partial(fn.select, dim=0, index=0), state) for state in (h, c))
        size, outputs = h.shape[-1], []
        for step in range(x.shape[0]):
            now = apply(fn.select, x, dim=0, index=step)
            gates = apply(
                fn.add, apply(fn.linear, now, w_ih, b_ih), apply(fn.linear, h, w_hh, b_hh)
            )
            i, f, g, o = (
                apply(fn.select, gates, dim=1, index=slice(n * size, (n + 1) * size))
                for n in range(4)
            )
            i, f, g, o = (
                apply(each, gate) for each, gate in zip(_GATES, (i, f, g, o), strict=True)
            )
            c = apply(fn.add, apply(fn.mul, f, c), apply(fn.mul, i, g), change=self._change)
            h = apply(fn.mul, o, apply(fn.tanh, c), change=self._change)
            outputs.append(apply(fn.reshape, h, shape=(1, *h.shape)))
        return apply(fn.cat, *outputs, dim=0), h, c


#: The operations that are made of several functions: their sums, and the states between their
#: steps, are changed like results, too.
_COMPOSED = frozenset({"batch_norm", "layer_norm", "lstm", "softmax"})

_GATES = (fn.sigmoid, fn.sigmoid, fn.tanh, fn.sigmoid)


def _transposed(call: Callable[..., Tensor], a: Tensor, first: int, second: int) -> Tensor:
    dims = list(range(len(a.shape)))
    dims[first], dims[second] = dims[second], dims[first]
    return call(fn.permute, a, dims=dims)


def _multiplied(call: Callable[..., Tensor], a: Tensor, b: Tensor | float) -> Tensor:
    return call(fn.mul, a, b) if isinstance(b, Tensor) else call(fn.scaled, a, factor=b)


def _plain(function: Function) -> Callable[..., Tensor]:
    return lambda call, *tensors, **attributes: call(function, *tensors, **attributes)


#: The operations in their canonical signatures, after a first argument: `apply`, with the change of
#: the operation's results.
_OPERATIONS: Mapping[str, Callable[..., Tensor]] = {
    "add": _plain(fn.add),
    "avg_pool2d": lambda call, x, size: call(fn.avg_pool2d, x, size=size),
    "binary_cross_entropy_with_logits": _plain(fn.binary_cross_entropy_with_logits),
    "cat": lambda call, parts, dim: call(fn.cat, *parts, dim=dim),
    "conv2d": _plain(fn.conv2d),
    "conv_transpose2d": _plain(fn.conv_transpose2d),
    "cross_entropy": _plain(fn.cross_entropy),
    "embedding": _plain(fn.embedding),
    "flatten": lambda call, a, start: call(fn.reshape, a, shape=(*a.shape[:start], -1)),
    "gelu": _plain(fn.gelu),
    "linear": _plain(fn.linear),
    "matmul": _plain(fn.matmul),
    "max_pool2d": lambda call, x, size: call(fn.max_pool2d, x, size=size),
    "mse_loss": _plain(fn.mse_loss),
    "mul": _multiplied,
    "permute": lambda call, a, dims: call(fn.permute, a, dims=dims),
    "relu": _plain(fn.relu),
    "reshape": lambda call, a, shape: call(fn.reshape, a, shape=shape),
    "select": lambda call, a, dim, index: call(fn.select, a, dim=dim, index=index),
    "squeeze": lambda call, a, dim: call(
        fn.reshape, a, shape=(*a.shape[:dim], *a.shape[dim + 1 :])
    ),
    "tanh": _plain(fn.tanh),
    "transpose": _transposed,
}
