"""JAX's calls in the canonical signatures of their operations, for `unamp.trace(keep=...)`.

Layers of flax and of equinox have a table here, those of Keras in `unamp.adapter.keras_calls`.
Inside of `jax.grad` a tensor has its numbers; inside of `jax.vmap` it has none, and the
call says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from unamp.adapter import keras_calls
from unamp.adapter.kept_calls import Arguments, Calls, Kept, Signatures
from unamp.adapter.observing import keep_call
from unamp.adapter.performing import Operator
from unamp.adapter.shadowing import NAMED, LeftOut
from unamp.adapter.signatures import (
    batch_norm,
    convolution,
    embedding,
    gelu,
    layer_norm,
    leaky_relu,
    linear,
    pooling,
    product,
    reduction,
    refuse_unless,
    softmax,
)
from unamp_jax.casting import with_numbers

if TYPE_CHECKING:
    from flax import linen, nnx


def before(
    op: str, operator: Operator, args: Sequence[object], kwargs: Mapping[str, object]
) -> Kept | None:
    """Return a function's or layer's arguments before the call; None where no trace keeps calls."""
    if not operator.layer:
        return keep_call(_CALLS, op, operator.name, args, kwargs)
    of_keras = getattr(args[0], "dtype_policy", None) is not None
    return keep_call(_OF_KERAS if of_keras else _CALLS, op, operator.name, args, kwargs, layer=True)


def before_primitive(
    op: str, name: str, args: Sequence[object], params: Mapping[str, object]
) -> Kept | None:
    """Return a primitive's arguments before the call; None where no trace keeps calls."""
    return keep_call(_PRIMITIVES, op, name, args, params)


def _array(value: object) -> np.ndarray:
    if not isinstance(value, (jax.Array, np.ndarray)) and hasattr(value, "__jax_array__"):
        value = value.__jax_array__()
    if not isinstance(value, (jax.Array, np.ndarray)):
        raise LeftOut(f"an argument cannot be written down: {type(value).__name__}")
    return np.asarray(with_numbers(value))


# --- functions ------------------------------------------------------------------------------------


def _softmax(
    x: jax.typing.ArrayLike,
    axis: int | tuple[int, ...] | None = -1,
    where: jax.typing.ArrayLike | None = None,
) -> Arguments:
    refuse_unless(where is None, "a mask")
    return softmax(x, axis)


def _product(
    a: jax.typing.ArrayLike,
    b: jax.typing.ArrayLike,
    *,
    precision: jax.lax.PrecisionLike = None,
    preferred_element_type: jax.typing.DTypeLike | None = None,
    out_sharding: object = None,
) -> Arguments:
    """Return a product's arguments; a stated precision is no argument of the operation."""
    if preferred_element_type is not None:
        raise LeftOut(NAMED)
    return product(a, b)


def _dot(a: jax.typing.ArrayLike, b: jax.typing.ArrayLike, **attributes: Any) -> Arguments:
    refuse_unless(max(len(a.shape), len(b.shape)) <= 2, "more than two axes")
    return _product(a, b, **attributes)


def _reduction(
    a: jax.typing.ArrayLike, axis: int | Sequence[int] | None = None,
    dtype: jax.typing.DTypeLike | None = None, out: object = None, keepdims: bool = False,
    initial: jax.typing.ArrayLike | None = None, where: jax.typing.ArrayLike | None = None,
    promote_integers: bool = True,
) -> Arguments:  # fmt: skip
    if dtype is not None:
        raise LeftOut(NAMED)
    refuse_unless(where is None and initial is None, "a mask or an initial value")
    return reduction(a, axis, keepdims)


def _pooling(
    inputs: jax.Array,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
    count_include_pad: bool = True,
) -> Arguments:
    rank = len(inputs.shape) - 2
    return pooling(inputs, window_shape, (1,) * rank if strides is None else strides, padding)


_FUNCTIONS: Signatures = {
    **{
        f"flax.{library}.{kind}_pool": _pooling
        for library in ("linen", "nnx")
        for kind in ("avg", "max")
    },
    "nn.gelu": lambda x, approximate=True: gelu(x, approximate),
    "nn.leaky_relu": lambda x, negative_slope=0.01: leaky_relu(x, negative_slope),
    "nn.log_softmax": _softmax,
    "nn.softmax": _softmax,
    "numpy.dot": _dot,
    "numpy.linalg.matmul": _product,
    "numpy.matmul": _product,
    "numpy.mean": _reduction,
    "numpy.sum": _reduction,
    "scipy.special.log_softmax": lambda x, /, *, axis=None: softmax(x, axis),
    "scipy.special.softmax": lambda x, /, *, axis=None: softmax(x, axis),
}


# --- layers ---------------------------------------------------------------------------------------


def _held(layer: linen.Module | nnx.Module, *names: str) -> list[jax.Array | nnx.Variable | None]:
    """Return a flax layer's parameters and statistics by their names; None for a missing one."""
    if getattr(layer, "scope", None) is None:
        return [getattr(layer, name, None) for name in names]
    # a module of linen
    held = {name: value for group in layer.variables.values() for name, value in group.items()}
    refuse_unless(bool(held), "no parameters yet")
    return [held.get(name) for name in names]


def _dense(
    layer: linen.Dense | nnx.Linear, inputs: jax.typing.ArrayLike, out_sharding: object = None
) -> Arguments:
    return linear(inputs, *_held(layer, "kernel", "bias"))


def _convolution(
    layer: linen.Conv | nnx.Conv, inputs: jax.typing.ArrayLike, out_sharding: object = None
) -> Arguments:
    plain = layer.mask is None and (layer.input_dilation or 1) in (
        1,
        *((1,) * n for n in (1, 2, 3)),
    )
    refuse_unless(plain, "a mask, or an input with zeros between")
    return convolution(
        inputs, *_held(layer, "kernel", "bias"), stride=layer.strides or 1, padding=layer.padding,
        dilation=layer.kernel_dilation or 1, groups=layer.feature_group_count,
    )  # fmt: skip


def _layer_norm(
    layer: linen.LayerNorm | nnx.LayerNorm,
    x: jax.typing.ArrayLike,
    *,
    mask: jax.typing.ArrayLike | None = None,
) -> Arguments:
    axes = [
        [n % len(x.shape) for n in np.reshape(each, -1)]
        for each in (layer.reduction_axes, layer.feature_axes)
    ]
    plain = mask is None and axes[0] == axes[1] == list(
        range(len(x.shape) - len(axes[0]), len(x.shape))
    )
    refuse_unless(plain, "a mask, or axes that are not the last")
    weight, bias = _held(layer, "scale", "bias")
    return layer_norm(x, len(axes[0]), weight, bias, layer.epsilon)


def _batch_norm(
    layer: linen.BatchNorm | nnx.BatchNorm,
    x: jax.typing.ArrayLike,
    use_running_average: bool | None = None,
    *,
    mask: jax.typing.ArrayLike | None = None,
) -> Arguments:
    refuse_unless(
        mask is None and layer.axis in (-1, len(x.shape) - 1),
        "a mask, or channels that are not last",
    )
    running = layer.use_running_average if use_running_average is None else use_running_average
    return batch_norm(
        x, *_held(layer, "mean", "var", "scale", "bias"),
        training=not running, momentum=1.0 - layer.momentum, epsilon=layer.epsilon, last=True,
    )  # fmt: skip


def _embedding(
    layer: linen.Embed | nnx.Embed, inputs: jax.typing.ArrayLike, out_sharding: object = None
) -> Arguments:
    return embedding(inputs, *_held(layer, "embedding"))


#: By the names that they have in both libraries of flax.
_OF_FLAX: Signatures = {
    "BatchNorm": _batch_norm,
    "Conv": _convolution,
    "Embed": _embedding,
    "LayerNorm": _layer_norm,
}

_LAYERS: Signatures = {
    **{
        f"flax.{library}.{name}": signature
        for library in ("linen", "nnx")
        for name, signature in _OF_FLAX.items()
    },
    "equinox.nn.Linear": lambda layer, x, *, key=None: Arguments((x, layer.weight, layer.bias)),
    "flax.linen.Dense": _dense,
    "flax.nnx.Linear": _dense,
}


# --- primitives: operands, then parameters by name ------------------------------------------------


def _dot_general(
    a: jax.typing.ArrayLike,
    b: jax.typing.ArrayLike,
    *,
    dimension_numbers: jax.lax.DotDimensionNumbers,
    **attributes: Any,
) -> Arguments:
    contracted, batch = dimension_numbers
    plain = [list(each) for each in (*contracted, *batch)] == [[1], [0], [], []] and len(
        a.shape
    ) == len(b.shape) == 2
    refuse_unless(plain, "axes of its own")
    return _product(a, b, **attributes)


_PRIMITIVES = Calls(
    {
        "dot_general": _dot_general,
        "integer_pow": lambda x, *, y: Arguments((x, int(y))),
        "reduce_sum": lambda x, *, axes, **sharding: reduction(x, axes),
    },
    {},
    _array,
)

_CALLS = Calls(_FUNCTIONS, _LAYERS, _array)
_OF_KERAS = Calls({}, keras_calls.LAYERS, _array)
