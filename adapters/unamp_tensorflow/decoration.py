"""Keras models with low variables, for `unamp.decorate`; `masters` has the optimizers that step a master weight of each.

A Keras variable stays the object that it is; what changes is the `tf.Variable` inside it, which cannot change its dtype.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from unamp.adapter import Decoration
from unamp.adapter.state import suspended
from unamp.dtypes import ELIGIBLE, LOW_DTYPES
from unamp.errors import NotExpressible
from unamp_tensorflow.masters import MasterWeights, give_master_weights, rebuild, with_inner
from unamp_tensorflow.state import thread

__all__ = ["decorate"]


def decorate(networks: Sequence[Any], optimizers: Sequence[Any], decoration: Decoration) -> None:
    """See `unamp.adapter.Adapter.decorate`. A model may be built or not, and so may an optimizer."""
    _check_expressible(decoration)
    layers, kept = _to_cast(networks, decoration.excluded)
    steppers = [inner for optimizer in optimizers for inner in with_inner(optimizer)]
    _check_new(layers, steppers)

    # One that is shared with a layer that stays in float32 stays so too.
    variables = [each for layer in layers for each in _own(layer) if id(each) not in kept]
    originals = _read(variables) if optimizers and decoration.master_weights else []
    replaced = [(each, old) for each in variables if (old := _cast(each, decoration.dtype)) is not None]
    for layer in layers:
        # What it still has to make will be low; and outside a region it computes in low.
        layer.dtype_policy = decoration.dtype
    for network in networks:
        _forget_traces(network)
    if decoration.master_weights:
        for optimizer in steppers:
            give_master_weights(optimizer, originals)
    rebuild(optimizers, steppers, replaced)


# --- what is asked for -------------------------------------------------------------------------------------------------------


def _check_expressible(decoration: Decoration) -> None:
    if decoration.master_grad:
        raise NotExpressible(
            "TensorFlow's gradients are values, in the dtype of their variable (master_grad): cast them to float32 where you "
            "add them up; GradScaler.unscale_ and the optimizer (clipping, gradient_accumulation_steps) compute in float32"
        )
    if decoration.save_dtype not in (None, decoration.dtype):
        raise NotExpressible(
            f"Keras saves a variable in the dtype that it has (save_dtype={decoration.save_dtype!r}): cast what get_weights() "
            "returns, or save the optimizer, which holds float32 master weights"
        )


def _to_cast(networks: Sequence[Any], excluded: Sequence[Any]) -> tuple[list[Any], set[int]]:
    """Return the layers whose variables become low, and the ids of the variables that stay in float32."""
    keras = tf.keras
    for each in excluded:
        if not isinstance(each, keras.layers.Layer) and not (isinstance(each, type) and issubclass(each, keras.layers.Layer)):
            raise TypeError(f"excluded_layers takes layers and classes of layers of Keras, not {each!r}")
    classes = (keras.layers.BatchNormalization, keras.layers.Normalization, *(e for e in excluded if isinstance(e, type)))
    instances = {id(each) for each in excluded if not isinstance(each, type)}
    seen: set[int] = set()
    kept: set[int] = set()

    def layers_of(layer: Any) -> Iterator[Any]:
        if id(layer) in instances or isinstance(layer, classes):
            kept.update(map(id, layer.variables))
            return
        if id(layer) in seen:
            return
        seen.add(id(layer))
        # A model that has no variables of its own leaves its inputs to its layers.
        if not isinstance(layer, (keras.Model, keras.layers.InputLayer)) or _own(layer):
            yield layer
        for each in layer._flatten_layers(include_self=False, recursive=False):
            yield from layers_of(each)

    return [layer for network in networks for layer in layers_of(network)], kept


def _own(layer: Any) -> list[Any]:
    """Return the floating variables of a layer itself."""
    held = [*layer._trainable_variables, *layer._non_trainable_variables]
    return [variable for variable in held if variable._dtype in ELIGIBLE]


def _check_new(layers: Sequence[Any], steppers: Sequence[Any]) -> None:
    low = [f"parameter {each.path} is {each._dtype}" for layer in layers for each in _own(layer) if each._dtype in LOW_DTYPES]
    low += [f"layer {layer.name} is {layer.variable_dtype}" for layer in layers if layer.variable_dtype in LOW_DTYPES]
    if low:
        raise ValueError(f"{low[0]} already; decorate a model whose parameters are float32, once")
    for optimizer in steppers:
        if isinstance(optimizer, MasterWeights):
            raise ValueError(f"{optimizer.name} has been decorated already")
        if (steps := int(tf.convert_to_tensor(optimizer._iterations))) > 0:
            raise ValueError(f"{optimizer.name} has begun: it has taken {steps} steps; decorate it before")
        if callable(getattr(optimizer, "_optimizer_map", None)) and not hasattr(optimizer._optimizer_map, "values"):
            raise ValueError(f"{optimizer.name} chooses its optimizers by a function; give it an OptimizerMap that lists them")


# --- models ------------------------------------------------------------------------------------------------------------------


def _read(variables: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Return the variables that somebody may train, each with its value: a tensor, which the next value does not change."""
    with tf.init_scope(), suspended(thread):
        return [(each, tf.convert_to_tensor(each._value)) for each in variables if each.trainable and each._value is not None]


def _cast(variable: Any, dtype: str) -> Any:
    """Put a low `tf.Variable` into a Keras variable, and return the one that was there; None where nothing was to be done."""
    old = variable._value
    if old is None or variable._dtype == dtype:
        return None
    variable._dtype = dtype
    with tf.init_scope(), _strategy(old).scope():
        variable._initialize(tf.cast(old, dtype))
    # A function that was traced with the old one must not go on with it: it finds another shape there, and raises.
    for each in getattr(old, "values", (old,)):
        tf.raw_ops.AssignVariableOp(resource=each.handle, value=tf.zeros([0, 0, 0], old.dtype))
    return old


def _strategy(variable: Any) -> Any:
    return getattr(variable, "distribute_strategy", None) or tf.distribute.get_strategy()


def _forget_traces(network: Any) -> None:
    for layer in network._flatten_layers():
        for name in ("train_function", "test_function", "predict_function"):
            if getattr(layer, name, None) is not None:
                setattr(layer, name, None)
