"""TensorFlow's functions for shapes and indices, in PyTorch's signatures; for `bindings`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from unamp._function_types import Function
from unamp_tensorflow.conformance.layers import built
from unamp_tensorflow.conformance.signatures import axis, first, last, ops
from unamp_tensorflow.state import Tensor


def _shuffled(input: Tensor, factor: int) -> Tensor:
    """Shuffle pixels as PyTorch does, where a block's channels come before its pixels."""
    count, channels, *size = input.shape
    blocks = tf.reshape(input, [count, channels // factor**2, factor**2, *size])
    ordered = tf.reshape(tf.transpose(blocks, [0, 3, 4, 2, 1]), [count, *size, channels])
    return first(tf.nn.depth_to_space(ordered, factor))


def _unshuffled(input: Tensor, factor: int) -> Tensor:
    blocks = tf.nn.space_to_depth(last(input), factor)
    count, *size, channels = blocks.shape
    parted = tf.reshape(blocks, [count, *size, factor**2, channels // factor**2])
    return tf.reshape(tf.transpose(parted, [0, 4, 3, 1, 2]), [count, channels, *size])


def _rolled(input: Tensor, shift: int) -> Tensor:
    return tf.reshape(tf.roll(tf.reshape(input, [-1]), shift, 0), input.shape)


def swapped(input: Tensor, first: int, second: int) -> Tensor:
    """Swap two axes."""
    order = list(range(input.ndim))
    order[first], order[second] = order[second], order[first]
    return tf.transpose(input, order)


def _chunked(input: Tensor, size: int, dim: int = 0) -> Any:
    return tf.split(input, input.shape[dim] // size, dim)


def _slice(input: Tensor, dim: int, start: int, end: int) -> Tensor:
    begin, size = [0] * input.ndim, [-1] * input.ndim
    begin[dim], size[dim] = start, end - start
    return tf.slice(input, begin, size)


def _without_batch(name: str, input: Tensor, *args: Any) -> Tensor:
    """Call a layer, which expects a batch, with a tensor without a batch."""
    return built(name, input, *args)(input[None])[0]


def _flatten(input: Tensor, start: int = 0) -> Tensor:
    return built("Flatten", input)(input) if start else _without_batch("Flatten", input)


def _permuted(input: Tensor, dims: Sequence[int]) -> Tensor:
    return _without_batch("Permute", input, tuple(n + 1 for n in dims))


def _zero_pad(input: Tensor, padding: Sequence[int]) -> Tensor:
    return built("ZeroPadding1D", input, tuple(padding))(input[..., None])[..., 0]


def _diag_embed(input: Tensor) -> Tensor:
    return tf.raw_ops.MatrixDiagV3(diagonal=input, k=0, num_rows=-1, num_cols=-1, padding_value=0.0)


def _select(input: Tensor, dim: int, index: int) -> Tensor:
    return tf.gather(input, index if index >= 0 else input.shape[dim] + index, axis=dim)


def _pad(mode: str) -> Function:
    def pad(input: Tensor, padding: Sequence[int]) -> Tensor:
        pairs = [list(padding[n : n + 2]) for n in range(0, len(padding), 2)]
        return tf.pad(input, [[0, 0]] * (input.ndim - len(pairs)) + pairs[::-1], mode)

    return pad


SHAPES: Mapping[str, Function] = {
    "adjoint": tf.linalg.adjoint,
    "broadcast_to": tf.broadcast_to,
    "conj": tf.math.conj,
    "diagonal": tf.linalg.diag_part,
    "fft_fftshift": tf.signal.fftshift,
    "fft_ifftshift": tf.signal.ifftshift,
    "flatten": _flatten,
    "flip": lambda input, dims: tf.reverse(input, dims),
    "imag": tf.math.imag,
    "meshgrid": lambda a, b: tf.meshgrid(a, b, indexing="ij"),
    "movedim": lambda input, source, target: ops("moveaxis")(input, source, target),
    "permute": _permuted,
    "pixel_shuffle": _shuffled,
    "pixel_unshuffle": _unshuffled,
    "real": tf.math.real,
    "roll": _rolled,
    "select": _select,
    "slice": _slice,
    "split": _chunked,
    "tensor_split": ops("array_split"),
    "tensor_unfold": lambda input, dim, size, step: tf.signal.frame(input, size, step, axis=dim),
    "transpose": swapped,
    "unbind": tf.unstack,
    "view_as_complex": ops("view_as_complex"),
    "view_as_real": ops("view_as_real"),
    "view": tf.reshape,
}

INDEXING: Mapping[str, Function] = {
    "argmax": axis(tf.argmax),
    "argmin": axis(tf.argmin),
    "argsort": axis(tf.argsort),
    "cat": lambda tensors, dim=0: tf.concat(tensors, dim),
    "constant_pad_nd": _zero_pad,
    "diag": ops("diag"),
    "diag_embed": _diag_embed,
    "dstack": ops("dstack"),
    "fold": ops("fold"),
    "gather": lambda input, dim, index: tf.gather(input, index, axis=dim, batch_dims=dim),
    "hstack": ops("hstack"),
    "kthvalue": lambda input, k, *, dim: tf.raw_ops.NthElement(input=input, n=k - 1),
    "nonzero": lambda input: tf.raw_ops.Where(condition=input),
    "pad": _pad("CONSTANT"),
    "reflection_pad2d": _pad("REFLECT"),
    "slice_scatter": lambda input, source, dim, start, end: ops("slice_update")(
        input, [start, 0], source
    ),
    "sort": axis(tf.sort),
    "stack": tf.stack,
    "take": lambda input, index: ops("take")(input, index),
    "take_along_dim": lambda input, index, dim: ops("take_along_axis")(input, index, dim),
    "topk": lambda input, k, *, dim: tf.math.top_k(input, k),
    "unfold": ops("unfold"),
    "unique": tf.unique,
    "vstack": ops("vstack"),
}
