"""Keras's layers in PyTorch's signatures: the layers' code, with the caller's parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import tensorflow as tf

from unamp._function_types import Function
from unamp_tensorflow.conformance.signatures import channels, first, keras, last
from unamp_tensorflow.state import Tensor


@cache
def _made(kind: str, dtype: str, /, *args: Any, **kwargs: Any) -> Any:
    layer = keras(f"layers.{kind}")(*args, **kwargs, dtype=dtype)
    layer.autocast = False  # inputs keep their dtypes: with autocast, Keras would cast them
    return layer


def built(name: str, input: Tensor, /, *args: Any, **kwargs: Any) -> Any:
    """Return a layer for an input: float64 for the suite's reference, else float32, as a user's."""
    return _made(name, "float64" if input.dtype is tf.float64 else "float32", *args, **kwargs)


def _with(homes: Mapping[Any, Mapping[str, Any]], call: Callable[[], Any]) -> Any:
    """Call a layer with other parameters."""
    before = {home: {name: vars(home).get(name) for name in given} for home, given in homes.items()}
    try:
        for home, given in homes.items():
            home.built = True
            vars(home).update(given)
        return call()
    finally:
        for home, given in before.items():
            vars(home).update(given)


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    layer = built("Dense", input, weight.shape[0], use_bias=bias is not None)
    return _with({layer: {"_kernel": tf.transpose(weight), "bias": bias}}, lambda: layer(input))


#: Keras's words for attributes of convolutions.
_SPREAD = {"dilation": "dilation_rate", "groups": "groups"}


def _convolution(
    name: str,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Any = 1,
    padding: int = 0,
    **spread: Any,
) -> Tensor:
    rank = weight.ndim - 2
    spread = {_SPREAD[key]: value for key, value in spread.items()}
    layer = built(
        name, input, spread.get("groups", 1), 1, strides=stride, use_bias=bias is not None, **spread
    )
    kernel = tf.transpose(weight, [*range(2, rank + 2), 1, 0])
    transposed = "Transpose" in name
    layer.filters, layer.kernel_size = (
        kernel.shape[-2 if transposed else -1],
        tuple(kernel.shape[:rank]),
    )
    key = "kernel" if transposed else "_kernel"
    x = last(input)
    if padding:
        x = tf.pad(x, [[0, 0], *([[padding, padding]] * rank), [0, 0]])
    return first(_with({layer: {key: kernel, "bias": bias}}, lambda: layer(x)))


def _gates(tensor: Tensor, order: Sequence[int]) -> Tensor:
    """Return a recurrent layer's parameter with its gates in Keras's order, the outputs last."""
    parts = tf.split(tensor, len(order))
    joined = tf.concat([parts[n] for n in order], 0) if len(order) > 1 else tensor
    return tf.transpose(joined)


_ORDERS = {"LSTM": (0, 1, 2, 3), "GRU": (1, 0, 2), "SimpleRNN": (0,)}


def _recurrent_parameters(kind: str, weights: Sequence[Tensor]) -> dict[str, Tensor]:
    w_ih, w_hh, b_ih, b_hh = (_gates(weight, _ORDERS[kind]) for weight in weights)
    bias = tf.stack([b_ih, b_hh]) if kind == "GRU" else b_ih + b_hh
    return {"kernel": w_ih, "recurrent_kernel": w_hh, "bias": bias}


def _recurrent(kind: str, states: int, input: Tensor, *rest: Tensor) -> Any:
    """Run one layer, time first."""
    given, weights = rest[:states], rest[states:]
    layer = built(kind, input, weights[1].shape[1], return_sequences=True, return_state=True)
    cell = layer.cell
    x = tf.transpose(input, [1, 0, 2])
    if not cell.built:
        cell.build(x.shape)
    parameters = _recurrent_parameters(kind, weights)
    initial = [state[0] for state in given]
    output, *last = _with({layer: {}, cell: parameters}, lambda: layer(x, initial_state=initial))
    return tf.transpose(output, [1, 0, 2]), *last


def _cell(kind: str, states: int, input: Tensor, *rest: Tensor) -> Any:
    given, weights = list(rest[:states]), rest[states:]
    cell = built(f"{kind}Cell", input, weights[1].shape[1])
    if not cell.built:
        cell.build(input.shape)
    output, last = _with({cell: _recurrent_parameters(kind, weights)}, lambda: cell(input, given))
    return (output, *last[1:]) if states > 1 else output


def _multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    w_in: Tensor,
    b_in: Tensor,
    w_out: Tensor,
    b_out: Tensor,
    *,
    heads: int,
) -> Tensor:
    width = w_out.shape[0]
    layer = built("MultiHeadAttention", query, heads, width // heads)
    inputs = [tf.transpose(tensor, [1, 0, 2]) for tensor in (query, key, value)]
    if not layer.built:
        layer.build(*(tensor.shape for tensor in (inputs[0], inputs[2], inputs[1])))
    homes = {}
    for n, dense in enumerate((layer._query_dense, layer._key_dense, layer._value_dense)):
        kernel, bias = w_in[n * width : (n + 1) * width], b_in[n * width : (n + 1) * width]
        homes[dense] = {
            "_kernel": tf.reshape(tf.transpose(kernel), [width, heads, -1]),
            "bias": tf.reshape(bias, [heads, -1]),
        }
    homes[layer._output_dense] = {
        "_kernel": tf.reshape(tf.transpose(w_out), [heads, -1, width]),
        "bias": b_out,
    }
    return tf.transpose(_with(homes, lambda: layer(inputs[0], inputs[2], key=inputs[1])), [1, 0, 2])


def _batch_norm(
    input: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor, *,
    training: bool, momentum: float, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    x = last(input)
    # A layer for each number of axes: it fixes the axes to reduce when it is built.
    layer = built(
        "BatchNormalization",
        input,
        momentum=1.0 - momentum,
        epsilon=eps,
        name=f"axes_{len(x.shape)}",
    )
    if not layer.built:
        with tf.init_scope():
            layer.build(x.shape)
    statistics = [_statistic("mean", mean), _statistic("variance", variance)]
    parameters = {
        "gamma": weight,
        "beta": bias,
        "moving_mean": statistics[0],
        "moving_variance": statistics[1],
    }
    result = _with({layer: parameters}, lambda: layer(x, training=training))
    return first(result)


def _statistic(name: str, values: Tensor) -> tf.Variable:
    """Return a variable with some values."""
    if isinstance(values, tf.Variable):
        return values
    if tf.executing_eagerly():
        return tf.Variable(values)
    variable = _kept(name, tuple(values.shape), values.dtype)
    variable.assign(values)
    return variable


@cache
def _kept(name: str, shape: tuple[int, ...], dtype: tf.DType) -> tf.Variable:
    """Return a variable for a graph, made once: `tf.function` allows no new one in later traces."""
    with tf.init_scope():
        return tf.Variable(tf.zeros(shape, dtype), trainable=False)


def _group_norm(input: Tensor, groups: int, weight: Tensor, bias: Tensor) -> Tensor:
    layer = built("GroupNormalization", input, groups, epsilon=1e-5)
    return first(_with({layer: {"gamma": weight, "beta": bias}}, lambda: layer(last(input))))


def _layer_norm(
    input: Tensor, shape: Sequence[int], weight: Tensor, bias: Tensor, *, eps: float = 1e-5
) -> Tensor:
    axes = -1 if len(shape) == 1 else tuple(range(-len(shape), 0))
    return keras("ops.layer_normalization")(input, weight, bias, axis=axes, epsilon=eps)


def _rms_norm(input: Tensor, shape: Sequence[int], weight: Tensor, *, eps: float = 1e-6) -> Tensor:
    return keras("ops.rms_normalization")(input, weight, axis=-1, epsilon=eps)


def _prelu(input: Tensor, weight: Tensor) -> Tensor:
    layer = built("PReLU", input)
    return _with({layer: {"alpha": weight}}, lambda: layer(input))


def _layer(name: str, *fixed: Any, **keywords: Any) -> Function:
    """Return a function for a layer without parameters."""
    return lambda input, *args, **kwargs: built(
        name, input, *fixed, *map(_hashable, args), **keywords
    )(input, **kwargs)


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _dropout(name: str) -> Function:
    return channels(lambda input, p, training: built(name, input, p)(input, training=training))


#: By canonical name.
LAYERS: Mapping[str, Function] = {
    **{"_".join(("adaptive", kind, f"pool{n}d")): channels(_layer(f"Adaptive{name}Pooling{n}D"))
       for kind, name in (("avg", "Average"), ("max", "Max")) for n in (1, 2, 3)},
    **{f"conv{n}d": partial(_convolution, f"Conv{n}D") for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": partial(_convolution, f"Conv{n}DTranspose") for n in (1, 2, 3)},
    **{f"dropout{n}d": _dropout(f"SpatialDropout{n}D") for n in (1, 2, 3)},
    "alpha_dropout": lambda input, p, training: (
        built("AlphaDropout", input, p)(input, training=training)
    ),
    "batch_norm": _batch_norm,
    "group_norm": _group_norm,
    "gru": partial(_recurrent, "GRU", 1),
    "gru_cell": partial(_cell, "GRU", 1),
    "layer_norm": _layer_norm,
    "linear": _linear,
    "lstm": partial(_recurrent, "LSTM", 2),
    "lstm_cell": partial(_cell, "LSTM", 2),
    "multi_head_attention": _multi_head_attention,
    "prelu": _prelu,
    "rms_norm": _rms_norm,
    "rnn": partial(_recurrent, "SimpleRNN", 1),
    "rnn_cell": partial(_cell, "SimpleRNN", 1),
}  # fmt: skip
