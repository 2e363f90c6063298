"""Layers of flax's linen and equinox's in PyTorch's signatures.

Only their code is used: the parameters are the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from flax import linen
from jax import lax

from unamp_jax.state import Array

#: What makes parameters: flax traces it at every call, to compare the shapes of those it is given.
_INIT = linen.initializers.zeros
_CELL = {"kernel_init": _INIT, "recurrent_kernel_init": _INIT}


class Statistic:
    """A running statistic: an object that has an array, which a layer replaces.

    Attributes:
        value: the array.
    """

    def __init__(self, value: Array) -> None:
        self.value = value


def last(tensor: Array) -> Array:
    """Return a tensor with its channels last."""
    return jnp.moveaxis(tensor, 1, -1)


def first(tensor: Array) -> Array:
    """Return a tensor with its channels first."""
    return jnp.moveaxis(tensor, -1, 1)


def _applied(layer: Any, parameters: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
    given = {name: value for name, value in parameters.items() if value is not None}
    return layer.apply({"params": given}, *args, **kwargs)


def _linear(input: Array, weight: Array, bias: Array | None = None) -> Array:
    return _applied(
        linen.Dense(weight.shape[0], use_bias=bias is not None, kernel_init=_INIT),
        {"kernel": weight.T, "bias": bias},
        input,
    )


def _kernel(weight: Array) -> Array:
    """Return a convolution's weights as flax has them: size, channels in, channels out."""
    return jnp.transpose(weight, (*range(2, weight.ndim), 1, 0))


def _convolution(
    input: Array, weight: Array, bias: Array | None = None, *,
    stride: Any = 1, padding: int = 0, dilation: Any = 1, groups: int = 1,
) -> Array:  # fmt: skip
    rank = weight.ndim - 2
    layer = linen.Conv(
        weight.shape[0], weight.shape[2:], strides=stride, padding=[(padding, padding)] * rank,
        use_bias=bias is not None, kernel_dilation=dilation, feature_group_count=groups,
        kernel_init=_INIT,
    )  # fmt: skip
    return first(_applied(layer, {"kernel": _kernel(weight), "bias": bias}, last(input)))


def _transposed(
    input: Array, weight: Array, bias: Array | None = None, *, stride: int = 1
) -> Array:
    rank = weight.ndim - 2
    layer = linen.ConvTranspose(
        weight.shape[1], weight.shape[2:], strides=(stride,) * rank, padding="VALID",
        use_bias=bias is not None, transpose_kernel=True, kernel_init=_INIT,
    )  # fmt: skip
    return first(_applied(layer, {"kernel": _kernel(weight), "bias": bias}, last(input)))


def _batch_norm(
    input: Array,
    mean: Any,
    variance: Any,
    weight: Array,
    bias: Array,
    *,
    training: bool,
    momentum: float,
    eps: float = 1e-5,
) -> Array:
    layer = linen.BatchNorm(use_running_average=not training, momentum=1.0 - momentum, epsilon=eps)
    homes = [each if isinstance(each, Statistic) else Statistic(each) for each in (mean, variance)]
    variables = {
        "params": {"scale": weight, "bias": bias},
        "batch_stats": {"mean": homes[0].value, "var": homes[1].value},
    }
    result, after = layer.apply(variables, last(input), mutable=["batch_stats"])
    for home, name in zip(homes, ("mean", "var"), strict=True):
        # a statistic has no gradient: an array with numbers, and no tracer
        home.value = lax.stop_gradient(after["batch_stats"][name])
    return first(result)


def _layer_norm(
    input: Array, shape: Sequence[int], weight: Array, bias: Array, *, eps: float = 1e-5
) -> Array:
    axes = tuple(range(-len(shape), 0))
    return _applied(
        linen.LayerNorm(epsilon=eps, reduction_axes=axes, feature_axes=axes),
        {"scale": weight, "bias": bias},
        input,
    )


def _rms_norm(input: Array, shape: Sequence[int], weight: Array, *, eps: float = 1e-6) -> Array:
    return _applied(linen.RMSNorm(epsilon=eps), {"scale": weight}, input)


def _group_norm(input: Array, groups: int, weight: Array, bias: Array) -> Array:
    return first(
        _applied(
            linen.GroupNorm(groups, epsilon=1e-5), {"scale": weight, "bias": bias}, last(input)
        )
    )


def _instance_norm(
    input: Array, mean: Array, variance: Array, weight: Array, bias: Array, *, use_input_stats: bool
) -> Array:
    return first(
        _applied(linen.InstanceNorm(epsilon=1e-5), {"scale": weight, "bias": bias}, last(input))
    )


def _embedding(index: Array, table: Array) -> Array:
    return _applied(linen.Embed(*table.shape, embedding_init=_INIT), {"embedding": table}, index)


def _dense(prefix: str, names: str, w: Array, b: Array | None) -> dict[str, Any]:
    parts = zip(
        names,
        jnp.split(w, len(names)),
        [None] * len(names) if b is None else jnp.split(b, len(names)),
        strict=True,
    )
    return {
        f"{prefix}{n}": {"kernel": kernel.T, **({} if bias is None else {"bias": bias})}
        for n, kernel, bias in parts
    }


def _with_bias(input: Array, weight: Array, bias: Array) -> tuple[Array, Array]:
    """Return an input with a column of ones, and weights with a second bias for it.

    Flax's layers have room for one bias only, and the sum of two low biases would be rounded before
    the layer begins.
    """
    ones = jnp.ones((*input.shape[:-1], 1), input.dtype)
    return jnp.concatenate([input, ones], -1), jnp.concatenate([weight, bias[:, None]], 1)


def _lstm_cell(
    input: Array, h: Array, c: Array, w_ih: Array, w_hh: Array, b_ih: Array, b_hh: Array
) -> Any:
    input, w_ih = _with_bias(input, w_ih, b_ih)
    parameters = {**_dense("i", "ifgo", w_ih, None), **_dense("h", "ifgo", w_hh, b_hh)}
    (c, h), _ = _applied(linen.LSTMCell(h.shape[-1], **_CELL), parameters, (c, h), input)
    return h, c


def _gru_cell(input: Array, h: Array, w_ih: Array, w_hh: Array, b_ih: Array, b_hh: Array) -> Array:
    size = h.shape[-1]
    hidden = _dense("h", "rzn", w_hh, b_hh)
    for name in "rz":  # these gates have one bias in flax
        del hidden[f"h{name}"]["bias"]
    input, w_ih = _with_bias(
        input, w_ih, jnp.where(jnp.arange(b_hh.size) < 2 * size, b_hh, jnp.zeros_like(b_hh))
    )
    parameters = {**_dense("i", "rzn", w_ih, b_ih), **hidden}
    return _applied(linen.GRUCell(size, **_CELL), parameters, h, input)[0]


def _rnn_cell(input: Array, h: Array, w_ih: Array, w_hh: Array, b_ih: Array, b_hh: Array) -> Array:
    input, w_ih = _with_bias(input, w_ih, b_ih)
    parameters = {"i": {"kernel": w_ih.T, "bias": b_hh}, "h": {"kernel": w_hh.T}}
    return _applied(linen.SimpleCell(h.shape[-1], **_CELL), parameters, h, input)[0]


def _multi_head_attention(
    query: Array,
    key: Array,
    value: Array,
    w_in: Array,
    b_in: Array,
    w_out: Array,
    b_out: Array,
    *,
    heads: int,
) -> Array:
    width = w_out.shape[0]
    parameters: dict[str, Any] = {}
    for name, kernel, bias in zip(
        ("query", "key", "value"), jnp.split(w_in, 3), jnp.split(b_in, 3), strict=True
    ):
        parameters[name] = {
            "kernel": kernel.T.reshape(width, heads, -1),
            "bias": bias.reshape(heads, -1),
        }
    parameters["out"] = {"kernel": w_out.T.reshape(heads, -1, width), "bias": b_out}
    layer = linen.MultiHeadDotProductAttention(heads, kernel_init=_INIT)
    return _applied(
        layer, parameters, *(jnp.swapaxes(each, 0, 1) for each in (query, key, value))
    ).swapaxes(0, 1)


def _prelu(input: Array, weight: Array) -> Array:
    """Run equinox's layer, which has a parameter for each channel; flax's has only one."""
    return first(eqx.nn.PReLU(weight)(last(input)))


def _pool(function: Callable[..., Any]) -> Callable[..., Any]:
    def pool(input: Array, kernel: Any, stride: Any = None, padding: int = 0) -> Array:
        rank = input.ndim - 2
        sizes, strides = (
            (n,) * rank if isinstance(n, int) else n
            for n in (kernel, kernel if stride is None else stride)
        )
        return first(function(last(input), sizes, strides, [(padding, padding)] * rank))

    return pool


def _adaptive(kind: Any) -> Callable[..., Any]:
    """Return a function for a pooling layer of equinox's, which takes a single example."""

    def pool(input: Array, size: Any) -> Array:
        layer = kind(size if isinstance(size, int) else tuple(size))
        return jnp.stack([layer(each) for each in input])

    return pool


def _dropout(input: Array, p: float, training: bool) -> Array:
    return linen.Dropout(p, deterministic=not training).apply(
        {}, input, rngs={"dropout": jax.random.key(0)}
    )


#: The layers by canonical name.
LAYERS: Mapping[str, Callable[..., Any]] = {
    **{f"conv{n}d": _convolution for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": _transposed for n in (1, 2, 3)},
    **{
        f"{kind}_pool{n}": _pool(getattr(linen, f"{kind}_pool"))
        for kind in ("avg", "max")
        for n in ("", "1d", "2d", "3d")
    },
    **{
        f"adaptive_{kind}_pool{n}d": _adaptive(getattr(eqx.nn, f"Adaptive{kind.title()}Pool{n}d"))
        for kind in ("avg", "max")
        for n in (1, 2, 3)
    },
    "batch_norm": _batch_norm,
    "convolution": _convolution,
    "dropout": _dropout,
    "embedding": _embedding,
    "group_norm": _group_norm,
    "gru_cell": _gru_cell,
    "instance_norm": _instance_norm,
    "layer_norm": _layer_norm,
    "linear": _linear,
    "lstm_cell": _lstm_cell,
    "multi_head_attention": _multi_head_attention,
    "prelu": _prelu,
    "rms_norm": _rms_norm,
    "rnn_cell": _rnn_cell,
}
