"""Keras models with low variables, and optimizers that step a float32 master weight of each.

A Keras variable stays the object that it is; what changes is the `tf.Variable` inside it. An optimizer stays the object that
it is, too, and becomes an instance of a subclass of its own class: to all of Keras's code for optimizers the master weights
are the variables, and state in float32 follows from that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import tensorflow as tf

from unamp.adapter import Decoration
from unamp.adapter.state import suspended
from unamp.dtypes import FLOAT32, LOW_DTYPES
from unamp.errors import NotExpressible
from unamp_tensorflow.spellings import keras_in_use
from unamp_tensorflow.state import thread

__all__ = ["decorate", "has_master_weights", "stepped"]


def decorate(networks: Sequence[Any], optimizers: Sequence[Any], decoration: Decoration) -> None:
    """See `unamp.adapter.Adapter.decorate`. A model may be built or not, and so may an optimizer."""
    _check_expressible(decoration)
    layers, kept = _to_cast(networks, decoration.excluded)
    steppers = [inner for optimizer in optimizers for inner in _with_inner(optimizer)]
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
            _give_master_weights(optimizer, originals)
    _rebuild(optimizers, steppers, replaced)


def has_master_weights(optimizer: Any) -> bool:
    """Whether an optimizer steps master weights, so that it takes low gradients."""
    return any(isinstance(inner, _MasterWeights) for inner in _with_inner(optimizer))


def stepped(optimizer: Any) -> list[Any]:
    """The variables that an optimizer was built for, in its order."""
    return list(vars(optimizer).get("_unamp_parameters") or optimizer._trainable_variables)


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
    """The layers whose variables become low, and the ids of the variables that stay in float32."""
    keras = tf.keras
    for each in excluded:
        if not isinstance(each, keras.layers.Layer) and not (isinstance(each, type) and issubclass(each, keras.layers.Layer)):
            raise TypeError(f"excluded_layers takes layers and classes of layers of Keras, not {each!r}")
    classes = (keras.layers.BatchNormalization, keras.layers.Normalization, *(e for e in excluded if isinstance(e, type)))
    instances = {id(each) for each in excluded if not isinstance(each, type)}
    seen: set[int] = set()
    kept: set[int] = set()

    def inside(layer: Any) -> Iterator[Any]:
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
            yield from inside(each)

    return [layer for network in networks for layer in inside(network)], kept


def _own(layer: Any) -> list[Any]:
    """The floating variables of a layer itself."""
    held = [*layer._trainable_variables, *layer._non_trainable_variables]
    return [variable for variable in held if variable._dtype in (FLOAT32, *LOW_DTYPES)]


def _with_inner(optimizer: Any) -> Iterator[Any]:
    """An optimizer and those inside it."""
    yield optimizer
    inner = getattr(optimizer, "inner_optimizer", None)
    for each in [inner] if inner is not None else getattr(optimizer, "optimizers", ()):
        yield from _with_inner(each)


def _check_new(layers: Sequence[Any], steppers: Sequence[Any]) -> None:
    low = [f"parameter {each.path} is {each._dtype}" for layer in layers for each in _own(layer) if each._dtype in LOW_DTYPES]
    low += [f"layer {layer.name} is {layer.variable_dtype}" for layer in layers if layer.variable_dtype in LOW_DTYPES]
    if low:
        raise ValueError(f"{low[0]} already; decorate a model whose parameters are float32, once")
    for optimizer in steppers:
        if isinstance(optimizer, _MasterWeights):
            raise ValueError(f"{optimizer.name} has been decorated already")
        if (steps := int(tf.convert_to_tensor(optimizer._iterations))) > 0:
            raise ValueError(f"{optimizer.name} has begun: it has taken {steps} steps; decorate it before")
        if callable(getattr(optimizer, "_optimizer_map", None)) and not hasattr(optimizer._optimizer_map, "values"):
            raise ValueError(f"{optimizer.name} chooses its optimizers by a function; give it an OptimizerMap that lists them")


# --- models ------------------------------------------------------------------------------------------------------------------


def _read(variables: Iterable[Any]) -> list[tuple[Any, Any]]:
    """The variables that somebody may train, each with its value, which outlives the variable's next one without a copy."""
    with tf.init_scope(), suspended(thread):
        return [(each, tf.convert_to_tensor(each._value)) for each in variables if each.trainable and each._value is not None]


def _cast(variable: Any, dtype: str) -> Any:
    """Put a low `tf.Variable` into a Keras variable, and return the one that was there."""
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


# --- optimizers --------------------------------------------------------------------------------------------------------------


def _give_master_weights(optimizer: Any, originals: Sequence[tuple[Any, Any]]) -> None:
    """Have an optimizer step master weights; one that has others inside leaves that to them.

    Args:
        optimizer: the optimizer.
        originals: variables, each with what it was before it became low, for the master weight to start from.
    """
    if any(inner is not optimizer for inner in _with_inner(optimizer)):
        return
    object.__setattr__(optimizer, "__class__", _with_masters(type(optimizer)))
    vars(optimizer)["_unamp_originals"] = {optimizer._var_key(variable): value for variable, value in originals}


def _rebuild(optimizers: Sequence[Any], steppers: Sequence[Any], replaced: Sequence[tuple[Any, Any]]) -> None:
    """Let optimizers that are built already be built for the variables as they are now."""
    now = {id(old): variable for variable, old in replaced}
    built = [(each, [now.get(id(v), v) for v in each._trainable_variables]) for each in optimizers if each.built]
    for optimizer in steppers:
        _rename_exclusions(optimizer, replaced)
        if optimizer.built:
            _unbuild(optimizer)
    for optimizer, variables in built:
        optimizer.build(variables)


def _rename_exclusions(optimizer: Any, replaced: Sequence[tuple[Any, Any]]) -> None:
    """`exclude_from_weight_decay` remembers the `tf.Variable` inside a Keras variable."""
    named = vars(optimizer).get("_exclude_from_weight_decay")
    if named:
        for variable, old in replaced:
            if optimizer._var_key(old) in named:
                named.add(optimizer._var_key(variable))


def _unbuild(optimizer: Any) -> None:
    kept = (optimizer._iterations, optimizer._learning_rate)
    for variable in optimizer._variables[:]:
        if not any(variable is each for each in kept):
            optimizer._untrack_variable(variable)
    optimizer._trainable_variables_indices.clear()
    optimizer._trainable_variables = []
    optimizer.built = False


class _MasterWeights:
    """What is put before an optimizer's own class: parameters outside, master weights inside."""

    def build(self: Any, variables: Iterable[Any]) -> None:
        if self.built:
            return
        parameters = list(variables)
        with tf.init_scope(), suspended(thread):
            originals = vars(self).pop("_unamp_originals", {})
            masters = [_master(self, p, originals.get(self._var_key(p))) if _is_low(p) else p for p in parameters]
            # In `vars`, past Keras's tracking: they are tracked where they were made.
            vars(self)["_unamp_parameters"] = parameters
            vars(self)["_unamp_masters"] = {
                self._var_key(each): master for each, master in zip(parameters, masters, strict=True)
            }
            vars(self)["_unamp_of_master"] = {
                self._var_key(master): each for each, master in zip(parameters, masters, strict=True)
            }
            super().build(masters)  # type: ignore[misc]

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        with suspended(thread):
            if not self.built and trainable_variables is not None:
                with tf.keras.name_scope(self.name):
                    self.build(trainable_variables)
            given = stepped(self) if trainable_variables is None else list(trainable_variables)
            masters = self._masters_of(given)
            pairs = [(each, master) for each, master in zip(given, masters, strict=True) if master is not each]
            for parameter, master in pairs:
                _catch_up(master, parameter)
            super().apply([_wide(each) for each in grads], masters)  # type: ignore[misc]
            _round(pairs)

    def finalize_variable_values(self: Any, var_list: Any) -> None:
        with suspended(thread):
            given = list(var_list)
            masters = self._masters_of(given)
            super().finalize_variable_values(masters)  # type: ignore[misc]
            _round(zip(given, masters, strict=True))

    def load_own_variables(self: Any, store: Any) -> None:
        super().load_own_variables(store)  # type: ignore[misc]
        _round(zip(stepped(self), self._trainable_variables, strict=True))

    def set_weights(self: Any, weights: Any) -> None:
        super().set_weights(weights)  # type: ignore[misc]
        _round(zip(stepped(self), self._trainable_variables, strict=True))

    def get_config(self: Any) -> dict[str, Any]:
        plain = type(self).__mro__[2]
        config = super().get_config()  # type: ignore[misc]
        return {**config, "optimizer": tf.keras.utils.serialize_keras_object(plain.from_config(dict(config)))}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        made = tf.keras.utils.deserialize_keras_object(config["optimizer"], custom_objects=custom_objects)
        object.__setattr__(made, "__class__", _with_masters(type(made)))
        return made

    def _masters_of(self: Any, parameters: Iterable[Any]) -> list[Any]:
        masters = vars(self)["_unamp_masters"]
        return [masters.get(self._var_key(each), each) for each in parameters]

    def _use_weight_decay(self: Any, variable: Any) -> bool:
        # Exclusions name parameters.
        parameter = vars(self)["_unamp_of_master"].get(self._var_key(variable), variable)
        return super()._use_weight_decay(getattr(parameter, "value", parameter))  # type: ignore[misc, no-any-return]


@cache
def _with_masters(kind: type) -> type:
    made = type(kind.__name__, (_MasterWeights, kind), {"__module__": kind.__module__, "__doc__": kind.__doc__})
    return tf.keras.utils.register_keras_serializable("unamp", "MasterWeights")(made)  # type: ignore[no-any-return]


def _is_low(variable: Any) -> bool:
    return tf.as_dtype(variable.dtype).name in LOW_DTYPES


def _master(optimizer: Any, parameter: Any, original: Any) -> Any:
    """A master weight, which starts from what the parameter was, or where it was never float32, from what it is."""
    value = getattr(parameter, "value", parameter)
    # A variable that the traced function itself makes has no value before the first step, which sees to it (`_catch_up`).
    begun = bool(value.is_initialized())
    with optimizer._distribution_strategy.extended.colocate_vars_with(value):
        master = optimizer.add_variable(
            parameter.shape,
            initializer=(lambda shape, dtype: tf.cast(value if original is None else original, dtype)) if begun else "zeros",
            dtype=FLOAT32,
            name=f"{getattr(parameter, 'path', parameter.name).replace('/', '_').replace(':', '_')}_master_weight",
        )
    master.constraint = getattr(parameter, "constraint", None)
    return master


def _wide(gradient: Any) -> Any:
    if gradient is None or gradient.dtype.name not in LOW_DTYPES:
        return gradient
    return tf.cast(gradient, tf.float32)  # of slices the values


def _catch_up(master: Any, parameter: Any) -> None:
    """Where somebody else has given the parameter another value, the master weight takes that over."""
    low = tf.convert_to_tensor(parameter)
    wide = tf.convert_to_tensor(master)
    _assign(master, tf.where(tf.cast(wide, low.dtype) == low, wide, tf.cast(low, tf.float32)))


def _round(pairs: Iterable[tuple[Any, Any]]) -> None:
    """Let parameters take over the rounded values of their master weights."""
    for parameter, master in pairs:
        if master is not parameter:
            _assign(parameter, tf.cast(tf.convert_to_tensor(master), parameter.dtype))


def _assign(variable: Any, value: Any) -> None:
    getattr(variable, "value", variable).assign(value)


if keras_in_use():
    _with_masters(tf.keras.optimizers.SGD)  # Keras can load what another process saved, whichever optimizer that was
