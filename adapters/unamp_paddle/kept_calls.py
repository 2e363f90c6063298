"""Paddle's calls in their operations' canonical signatures, for `unamp.trace(keep=...)`."""

from __future__ import annotations

import numpy as np
import paddle

from unamp.adapter.kept_calls import Arguments, Calls, Signatures
from unamp.adapter.observing import unobserved
from unamp.adapter.shadowing import NAMED, LeftOut
from unamp.adapter.signatures import (
    Padding,
    PerAxis,
    convolution,
    gelu,
    layer_norm,
    leaky_relu,
    linear,
    pooling,
    product,
    refuse_unless,
    softmax,
)
from unamp_paddle.state import Tensor, thread


def _array(value: object) -> np.ndarray:
    if not isinstance(value, Tensor) or not value._is_initialized() or not value.is_dense():
        raise LeftOut(f"an argument cannot be written down: {type(value).__name__}")
    with unobserved(thread), paddle.no_grad():
        array: np.ndarray = value.numpy()
    if value.dtype == paddle.bfloat16:  # Paddle's NumPy array of it holds the bits, as integers
        from ml_dtypes import bfloat16

        return array.view(bfloat16)
    return array


def _softmax(x: Tensor, axis: int = -1, dtype: object = None, name: object = None) -> Arguments:
    if dtype is not None:
        raise LeftOut(NAMED)
    return softmax(x, axis)


def _layer_norm(
    x: Tensor,
    normalized_shape: PerAxis,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    epsilon: float = 1e-5,
    name: object = None,
) -> Arguments:
    return layer_norm(x, len(np.atleast_1d(normalized_shape)), weight, bias, epsilon)


def _conv(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: PerAxis = 1,
    padding: Padding = 0, padding_algorithm: str = "EXPLICIT", dilation: PerAxis = 1,
    groups: int = 1, data_format: str = "NCHW", channel_dim: int = 1, op_type: str = "",
    use_cudnn: bool = True, name: object = None,
) -> Arguments:  # fmt: skip
    plain = padding_algorithm == "EXPLICIT" and channel_dim == 1
    refuse_unless(plain, "another layout, or a padding that is not given in numbers")
    return convolution(
        x, weight, bias,
        stride=stride, padding=padding, dilation=dilation, groups=groups, last=False,
    )  # fmt: skip


def _max_pool2d(
    x: Tensor, kernel_size: PerAxis, stride: PerAxis | None = None, padding: Padding = 0,
    return_mask: bool = False, ceil_mode: bool = False, data_format: str = "NCHW",
    name: object = None,
) -> Arguments:  # fmt: skip
    refuse_unless(
        not return_mask and not ceil_mode and data_format == "NCHW",
        "a mask, a rounding or a layout of its own",
    )
    return pooling(x, kernel_size, stride, padding, last=False)


_FUNCTIONS: Signatures = {
    "conv1d": _conv,
    "conv2d": _conv,
    "conv3d": _conv,
    "gelu": lambda x, approximate=False, name=None: gelu(x, approximate),
    "leaky_relu": lambda x, negative_slope=0.01, name=None: leaky_relu(x, negative_slope),
    "layer_norm": _layer_norm,
    "linear": lambda x, weight, bias=None, name=None: linear(x, weight, bias),
    "log_softmax": _softmax,
    "matmul": lambda x, y, transpose_x=False, transpose_y=False, name=None: product(
        x, y, transpose_x, transpose_y
    ),
    "max_pool2d": _max_pool2d,
    "softmax": _softmax,
}

CALLS = Calls(_FUNCTIONS, {}, _array)
