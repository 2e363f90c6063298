"""MindSpore's calls in their operations' canonical signatures, for `unamp.trace(keep=...)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unamp.adapter.kept_calls import Arguments, Calls, Signatures
from unamp.adapter.observing import unobserved
from unamp.adapter.shadowing import NAMED, LeftOut
from unamp.adapter.signatures import (
    Padding,
    PerAxis,
    batch_norm,
    convolution,
    embedding,
    gelu,
    layer_norm,
    leaky_relu,
    of_layer,
    one_input,
    pooling,
    product,
    reduction,
    refuse_unless,
    softmax,
)
from unamp_mindspore.casting import cast
from unamp_mindspore.state import DTYPES, FLOAT32, Dtype, Tensor, dtype_of, thread

if TYPE_CHECKING:
    from mindspore import nn
    from mindspore.nn.layer.normalization import _BatchNorm


def _array(value: object) -> Any:
    if not isinstance(value, Tensor):
        raise LeftOut(f"an argument cannot be written down: {type(value).__name__}")
    with unobserved(thread):
        if dtype_of(value) is not DTYPES["bfloat16"]:
            return value.asnumpy()
        from ml_dtypes import bfloat16

        return cast(value, FLOAT32).asnumpy().astype(bfloat16)


# --- functions ------------------------------------------------------------------------------------


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Arguments:
    return Arguments((input, weight, bias))


def _softmax(
    input: Tensor, axis: PerAxis = -1, *, dtype: Dtype | None = None, dim: int | None = None
) -> Arguments:
    if dtype is not None:
        raise LeftOut(NAMED)
    return softmax(input, axis if dim is None else dim)


def _layer_norm(
    input: Tensor,
    normalized_shape: PerAxis,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Arguments:
    return layer_norm(
        input, 1 if isinstance(normalized_shape, int) else len(normalized_shape), weight, bias, eps
    )


def _mint_conv(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: PerAxis = 1,
    padding: Padding = 0, dilation: PerAxis = 1, groups: int = 1,
) -> Arguments:  # fmt: skip
    return convolution(
        input, weight, bias,
        stride=stride, padding=padding, dilation=dilation, groups=groups, last=False,
    )  # fmt: skip


def _conv(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: PerAxis = 1,
    pad_mode: str = "valid", padding: PerAxis = 0, dilation: PerAxis = 1, groups: int = 1,
) -> Arguments:  # fmt: skip
    sides = padding if pad_mode == "pad" else pad_mode
    return _mint_conv(input, weight, bias, stride, sides, dilation, groups)


def _reduction(
    input: Tensor, axis: PerAxis | None = None, keep_dims: bool = False, *,
    dim: PerAxis | None = None, keepdim: bool = False, dtype: Dtype | None = None,
) -> Arguments:  # fmt: skip
    if dtype is not None:
        raise LeftOut(NAMED)
    return reduction(input, axis if dim is None else dim, keep_dims or keepdim)


_FUNCTIONS: Signatures = {
    **{f"ops.conv{n}d": _conv for n in (1, 2, 3)},
    **{f"mint.nn.functional.conv{n}d": _mint_conv for n in (1, 2, 3)},
    "mint.conv2d": _mint_conv,
    "GeLU": lambda input: gelu(input, True),
    "mint.nn.functional.gelu": lambda input, approximate="none": gelu(input, approximate == "tanh"),
    "ops.gelu": lambda input, approximate="none": gelu(input, approximate == "tanh"),
    "layer_norm": _layer_norm,
    "linear": _linear,
    "log_softmax": lambda logits, axis=-1: softmax(logits, axis),
    "matmul": product,
    "mean": _reduction,
    "ops.leaky_relu": lambda input, alpha=0.2: leaky_relu(input, alpha),
    "softmax": _softmax,
    "sum": _reduction,
}


# --- layers ---------------------------------------------------------------------------------------


def _dense(layer: nn.Dense, x: Tensor) -> Arguments:
    refuse_unless(not layer.activation_flag, "an activation of its own")
    return _linear(x, layer.weight, layer.bias if layer.has_bias else None)


def _convolution(layer: nn.Conv2d, x: Tensor) -> Arguments:
    rank = len(layer.kernel_size)
    refuse_unless(getattr(layer, "data_format", "NCHW") in ("NCHW", "NCDHW"), "its channels last")
    sides: Padding = layer.pad_mode
    if sides == "pad" and isinstance(layer.padding, int):
        sides = layer.padding
    elif sides == "pad":
        sides = [layer.padding[n : n + 2] for n in range(0, 2 * rank, 2)]
    bias = layer.bias if layer.has_bias else None
    return _mint_conv(x, layer.weight, bias, layer.stride, sides, layer.dilation, layer.group)


def _pooling(layer: nn.MaxPool2d, x: Tensor) -> Arguments:
    plain = not layer.use_pad and layer.format == "NCHW" and len(x.shape) == 4
    refuse_unless(plain, "a padding in numbers, channels that are last, or no batch")
    return pooling(x, layer.kernel_size, layer.stride, layer.pad_mode, last=False)


def _norm(layer: nn.LayerNorm, x: Tensor) -> Arguments:
    begin = layer.begin_norm_axis % len(x.shape)
    refuse_unless(layer.begin_params_axis % len(x.shape) == begin, "parameters of another shape")
    return layer_norm(x, len(x.shape) - begin, layer.gamma, layer.beta, layer.epsilon)


def _batch_norm(layer: _BatchNorm, x: Tensor) -> Arguments:
    training = layer.training if layer.use_batch_statistics is None else layer.use_batch_statistics
    return batch_norm(
        x, layer.moving_mean, layer.moving_variance, layer.gamma, layer.beta,
        training=training, momentum=layer.momentum, epsilon=layer.eps, last=False,
    )  # fmt: skip


_LAYERS: Signatures = {
    **{
        f"{name}.construct": of_layer(one_input)
        for name in ("ReLU", "ReLU6", "Sigmoid", "SiLU", "Tanh", "SeLU", "Mish")
    },
    "BatchNorm2d.construct": _batch_norm,
    "_BatchNorm.construct": _batch_norm,
    "Conv2d.construct": _convolution,
    "Dense.construct": _dense,
    "Embedding.construct": lambda layer, ids: embedding(ids, layer.embedding_table),
    "GELU.construct": lambda layer, x: gelu(x, layer.approximate in (True, "tanh")),
    "LayerNorm.construct": _norm,
    "LayerNormExt.construct": lambda layer, x: _layer_norm(
        x, layer.normalized_shape, layer.weight, layer.bias, layer.eps
    ),
    "LeakyReLU.construct": of_layer(leaky_relu, "alpha"),
    "Linear.construct": lambda layer, x: _linear(x, layer.weight, layer.bias),
    "MaxPool2d.construct": _pooling,
}

CALLS = Calls(_FUNCTIONS, _LAYERS, _array)
