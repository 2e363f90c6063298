"""Canonical calls of Keras's layers and functions, for `unamp.adapter.kept_calls.Calls`.

They serve whichever backend Keras computes with.
"""

from __future__ import annotations

import sys

from unamp.adapter.framework_types import Layer, Tensor
from unamp.adapter.kept_calls import Arguments, Signatures
from unamp.adapter.signatures import (
    PerAxis,
    batch_norm,
    convolution,
    embedding,
    gelu,
    layer_norm,
    leaky_relu,
    linear,
    of_layer,
    one_input,
    pooling,
    product,
    reduction,
    refuse_unless,
    softmax,
)

#: Keras's default slope of leaky_relu.
_SLOPE = 0.2


def _plain(layer: Layer) -> None:
    """Leave out a layer with an activation, which is no part of the canonical operation."""
    refuse_unless(getattr(layer.activation, "__name__", "") == "linear", "an activation of its own")


def _dense(layer: Layer, inputs: Tensor, training: object = None) -> Arguments:
    _plain(layer)
    return linear(inputs, layer.kernel, layer.bias)


def _convolution(layer: Layer, inputs: Tensor) -> Arguments:
    _plain(layer)
    refuse_unless(layer.data_format == "channels_last", "its channels first")
    return convolution(
        inputs, layer.kernel, layer.bias, stride=layer.strides, padding=layer.padding,
        dilation=layer.dilation_rate, groups=layer.groups,
    )  # fmt: skip


def _pooling(layer: Layer, inputs: Tensor) -> Arguments:
    refuse_unless(layer.data_format == "channels_last", "its channels first")
    return pooling(inputs, layer.pool_size, layer.strides, layer.padding)


def _trailing(axis: PerAxis, x: Tensor) -> int:
    """Return the number of axes, which must be the last of a tensor."""
    axes = sorted(n % len(x.shape) for n in ((axis,) if isinstance(axis, int) else axis))
    refuse_unless(
        axes == list(range(len(x.shape) - len(axes), len(x.shape))), "axes that are not the last"
    )
    return len(axes)


def _layer_normalization(
    x: Tensor,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    axis: PerAxis = -1,
    epsilon: float | None = None,
) -> Arguments:
    small = sys.modules["keras"].config.epsilon() if epsilon is None else epsilon
    return layer_norm(x, _trailing(axis, x), gamma, beta, small)


def _batch_norm(
    layer: Layer, inputs: Tensor, training: object = None, mask: object = None
) -> Arguments:
    refuse_unless(mask is None, "a mask")
    refuse_unless(_trailing(layer.axis, inputs) == 1, "several axes of channels")
    learning = bool(training) and layer.trainable
    return batch_norm(
        inputs, layer.moving_mean, layer.moving_variance, layer.gamma, layer.beta,
        training=learning, momentum=1.0 - layer.momentum, epsilon=layer.epsilon, last=True,
    )  # fmt: skip


def _relu(
    x: Tensor, negative_slope: object = 0.0, max_value: object = None, threshold: object = 0.0
) -> Arguments:
    refuse_unless(
        max_value is None and not negative_slope and not threshold,
        "a bound, a slope or a threshold",
    )
    return one_input(x)


#: By canonical name.
LAYERS: Signatures = {
    **{f"conv{n}d": _convolution for n in (1, 2, 3)},
    **{f"{kind}_pool{n}d": _pooling for kind in ("avg", "max") for n in (1, 2, 3)},
    "batch_norm": _batch_norm,
    "embedding": lambda layer, inputs: embedding(inputs, layer.embeddings),
    "layer_norm": lambda layer, x: layer_norm(
        x, _trailing(layer.axis, x), layer.gamma, layer.beta, layer.epsilon
    ),
    "leaky_relu": of_layer(leaky_relu, "negative_slope"),
    "linear": _dense,
    "relu": of_layer(_relu, "negative_slope", "max_value", "threshold"),
    "softmax": of_layer(softmax, "axis"),
}

#: By Keras's names.
FUNCTIONS: Signatures = {
    **{
        f"keras.{module}.{name}": softmax
        for module in ("activations", "ops")
        for name in ("softmax", "log_softmax")
    },
    "keras.activations.gelu": lambda x, approximate=False: gelu(x, approximate),
    "keras.activations.leaky_relu": lambda x, negative_slope=_SLOPE: leaky_relu(x, negative_slope),
    "keras.activations.relu": _relu,
    "keras.ops.gelu": lambda x, approximate=True: gelu(x, approximate),
    "keras.ops.layer_normalization": _layer_normalization,
    "keras.ops.leaky_relu": lambda x, negative_slope=_SLOPE: leaky_relu(x, negative_slope),
    "keras.ops.matmul": lambda x1, x2: product(x1, x2),
    "keras.ops.mean": reduction,
    "keras.ops.sum": reduction,
}
