"""TensorFlow's calls in their operations' canonical signatures, for `unamp.trace(keep=...)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import tensorflow as tf
from tensorflow.python.eager.record import stop_recording

from unamp.adapter import keras_calls
from unamp.adapter.kept_calls import Arguments, Calls, Kept, Signatures
from unamp.adapter.observing import keep_call, unobserved
from unamp.adapter.shadowing import NAMED, LeftOut
from unamp.adapter.signatures import (
    batch_norm,
    convolution,
    gelu,
    leaky_relu,
    pooling,
    product,
    reduction,
    refuse_unless,
    softmax,
)
from unamp_tensorflow.composite_tensors import is_dispatched
from unamp_tensorflow.listing import OpType
from unamp_tensorflow.state import thread

if TYPE_CHECKING:
    from unamp_tensorflow.state import Value

    #: A tensor, or an object that becomes one: a variable, an array, numbers.
    TensorLike: TypeAlias = tf.types.experimental.TensorLike


def before(
    op: str, name: str, args: Sequence[Value], kwargs: Mapping[str, Value], *, layer: bool = False
) -> Kept | None:
    """Return a call's arguments, before it runs; None if no trace keeps calls, and in a graph."""
    return (
        keep_call(_CALLS, op, name, args, kwargs, layer=layer) if tf.executing_eagerly() else None
    )


def before_type(op_type: OpType, args: Sequence[Value]) -> Kept | None:
    """Return the arguments of a call: the inputs, then each attribute after its name."""
    assert op_type.op is not None
    count = len(op_type.inputs)
    attributes = dict(zip(args[count::2], args[count + 1 :: 2], strict=False))
    # Attributes that are dtypes (the names in capitals) are left out: inputs have their dtype.
    named = {name: value for name, value in attributes.items() if not name[0].isupper()}
    backward = "Grad" in op_type.name or "Backprop" in op_type.name
    return before(
        op_type.op, op_type.name, args[:count], {**named, "backward": True} if backward else named
    )


def _array(value: object) -> Any:
    if not hasattr(value, "dtype") or not hasattr(value, "shape") or is_dispatched(value):
        raise LeftOut(f"an argument cannot be written down: {type(value).__name__}")
    with unobserved(thread), stop_recording():
        return tf.convert_to_tensor(value).numpy()


# --- operation types: inputs, then attributes by name ---------------------------------------------


def _matmul(
    a: TensorLike, b: TensorLike, *, transpose_a: bool = False, transpose_b: bool = False,
    adj_x: bool = False, adj_y: bool = False,
    grad_a: bool = False, grad_b: bool = False, grad_x: bool = False, grad_y: bool = False,
) -> Arguments:  # fmt: skip
    return product(a, b, transpose_a or adj_x, transpose_b or adj_y)


def _conv2d(
    input: TensorLike, filter: TensorLike, *, strides: Sequence[int], padding: str | bytes,
    explicit_paddings: Sequence[int] = (), data_format: str | bytes = "NHWC",
    dilations: Sequence[int] = (1, 1, 1, 1), use_cudnn_on_gpu: bool = True,
) -> Arguments:  # fmt: skip
    refuse_unless(_text(data_format) == "NHWC", "its channels first")
    sides: str | list[tuple[int, int]] = _text(padding)
    if sides == "EXPLICIT":
        sides = list(zip(explicit_paddings[2:6:2], explicit_paddings[3:6:2], strict=True))
    groups = input.shape[-1] // filter.shape[-2]
    return convolution(
        input, filter, stride=strides[1:3], padding=sides, dilation=dilations[1:3], groups=groups
    )


def _pool2d(
    value: TensorLike,
    *,
    ksize: Sequence[int],
    strides: Sequence[int],
    padding: str | bytes,
    data_format: str | bytes = "NHWC",
    explicit_paddings: Sequence[int] = (),
) -> Arguments:
    plain = _text(data_format) == "NHWC" and (ksize[0], ksize[3]) == (1, 1)
    refuse_unless(plain, "its channels first, or windows over channels")
    return pooling(value, ksize[1:3], strides[1:3], _text(padding))


def _reduction(input: TensorLike, axis: TensorLike, *, keep_dims: bool = False) -> Arguments:
    axes = [int(n) for n in _array(axis).reshape(-1)]
    return reduction(input, axes if len(axes) < len(input.shape) else None, keep_dims)


def _batch_norm(
    x: TensorLike, scale: TensorLike, offset: TensorLike, mean: TensorLike, variance: TensorLike,
    *, epsilon: float = 1e-4, data_format: str | bytes = "NHWC", is_training: bool = True,
    exponential_avg_factor: float = 1.0,
) -> Arguments:  # fmt: skip
    refuse_unless(
        _text(data_format) == "NHWC" and not is_training,
        "its channels first, or statistics of its own",
    )
    return batch_norm(
        x, mean, variance, scale, offset, training=False, momentum=0.1, epsilon=epsilon, last=True
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


# --- functions ------------------------------------------------------------------------------------


def _softmax(logits: TensorLike, axis: int | None = None, name: str | None = None) -> Arguments:
    return softmax(logits, -1 if axis is None else axis)


def _product(
    a: TensorLike, b: TensorLike, transpose_a: bool = False, transpose_b: bool = False,
    adjoint_a: bool = False, adjoint_b: bool = False,
    a_is_sparse: bool = False, b_is_sparse: bool = False,
    output_type: tf.DType | None = None, name: str | None = None,
) -> Arguments:  # fmt: skip
    if output_type is not None:
        raise LeftOut(NAMED)
    return _matmul(
        a, b, transpose_a=transpose_a, transpose_b=transpose_b, adj_x=adjoint_a, adj_y=adjoint_b
    )


def _reduced(
    input_tensor: TensorLike,
    axis: TensorLike | None = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Arguments:
    axes = None if axis is None else [int(n) for n in np.reshape(axis, -1)]
    return reduction(input_tensor, axes, keepdims)


def _convolved(
    input: TensorLike, filters: TensorLike, strides: int | Sequence[int],
    padding: str | Sequence[Sequence[int]], data_format: str | None = "NHWC",
    dilations: int | Sequence[int] | None = None, name: str | None = None,
) -> Arguments:  # fmt: skip
    plain = data_format is None or data_format.endswith("C")
    refuse_unless(plain, "its channels first")
    rank, sides = len(filters.shape) - 2, padding
    if not isinstance(padding, str):
        sides = list(padding)[1:-1]
    spread = (1,) * rank if dilations is None else _inner(dilations, rank)
    groups = input.shape[-1] // filters.shape[-2]
    return convolution(
        input, filters, stride=_inner(strides, rank), padding=sides, dilation=spread, groups=groups
    )


def _pooled(
    input: TensorLike,
    ksize: int | Sequence[int],
    strides: int | Sequence[int],
    padding: str | Sequence[Sequence[int]],
    data_format: str = "NHWC",
    name: str | None = None,
) -> Arguments:
    refuse_unless(
        data_format.endswith("C") and isinstance(padding, str),
        "its channels first, or a padding in numbers",
    )
    rank = len(input.shape) - 2
    return pooling(input, _inner(ksize, rank), _inner(strides, rank), padding)


def _inner(numbers: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """Return a number for each spatial axis, from one for all or one for each axis of the input."""
    given = tuple(int(n) for n in np.reshape(numbers, -1))
    return given[1:-1] if len(given) == rank + 2 else given * rank if len(given) == 1 else given


_FUNCTIONS: Signatures = {
    **keras_calls.FUNCTIONS,
    **{f"nn.conv{n}d": _convolved for n in (1, 2, 3)},
    **{f"nn.{kind}{n}d": _pooled for kind in ("avg_pool", "max_pool") for n in (1, 2, 3)},
    "AvgPool": _pool2d,
    "BatchMatMulV2": _matmul,
    "BatchMatMulV3": _matmul,
    "Conv2D": _conv2d,
    "FusedBatchNormV3": _batch_norm,
    "LeakyRelu": lambda features, *, alpha=0.2: leaky_relu(features, alpha),
    "LogSoftmax": lambda logits: softmax(logits, -1),
    "MatMul": _matmul,
    "MaxPool": _pool2d,
    "Mean": _reduction,
    "Softmax": lambda logits: softmax(logits, -1),
    "Sum": _reduction,
    "matmul": _product,
    "nn.gelu": lambda features, approximate=False, name=None: gelu(features, approximate),
    "nn.leaky_relu": lambda features, alpha=0.2, name=None: leaky_relu(features, alpha),
    "nn.log_softmax": _softmax,
    "nn.softmax": _softmax,
    "reduce_mean": _reduced,
    "reduce_sum": _reduced,
}

_CALLS = Calls(_FUNCTIONS, keras_calls.LAYERS, _array)
