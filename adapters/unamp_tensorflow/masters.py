"""Optimizers of Keras that step a float32 master weight of each low parameter.

An optimizer stays the object that it is, and becomes an instance of a subclass of its own class: to all of Keras's code for
optimizers the master weights are the variables, and state, averages and clipping in float32 follow from that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import tensorflow as tf

from unamp.adapter.state import suspended
from unamp.dtypes import FLOAT32, LOW_DTYPES
from unamp_tensorflow.spellings import keras_in_use
from unamp_tensorflow.state import thread

__all__ = ["MasterWeights", "give_master_weights", "has_master_weights", "rebuild", "stepped", "with_inner"]

#: The fewest numbers of a parameter for which a condition costs less than it saves.
_LARGE = 1 << 16

_Optimizer: Any = object  # stands for the optimizer's own class, which comes after `MasterWeights` among the bases


def has_master_weights(optimizer: Any) -> bool:
    """Return whether an optimizer steps master weights, so that it takes low gradients."""
    return any(isinstance(inner, MasterWeights) for inner in with_inner(optimizer))


def stepped(optimizer: Any) -> list[Any]:
    """Return the variables that an optimizer was built for, in its order."""
    return list(vars(optimizer).get("_unamp_parameters") or optimizer._trainable_variables)


def with_inner(optimizer: Any) -> Iterator[Any]:
    """Yield an optimizer and those inside it."""
    yield optimizer
    inner = getattr(optimizer, "inner_optimizer", None)
    for each in [inner] if inner is not None else getattr(optimizer, "optimizers", ()):
        yield from with_inner(each)


def give_master_weights(optimizer: Any, originals: Sequence[tuple[Any, Any]]) -> None:
    """Have an optimizer step master weights; one that has others inside leaves that to them.

    Args:
        optimizer: the optimizer.
        originals: variables, each with what it was before it became low, for the master weight to start from.
    """
    if any(inner is not optimizer for inner in with_inner(optimizer)):
        return
    _change_class(optimizer)
    vars(optimizer)["_unamp_originals"] = {optimizer._var_key(variable): value for variable, value in originals}


def rebuild(optimizers: Sequence[Any], steppers: Sequence[Any], replaced: Sequence[tuple[Any, Any]]) -> None:
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
    """Follow the variables in `exclude_from_weight_decay`, which remembers the `tf.Variable` inside a Keras variable."""
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


class MasterWeights(_Optimizer):  # type: ignore[misc] # Keras comes without types
    """The methods that go before those of an optimizer's own class: callers see parameters, Keras's code master weights."""

    def build(self, variables: Iterable[Any]) -> None:
        if self.built:
            return
        parameters = list(variables)
        with tf.init_scope(), suspended(thread):
            originals = self.__dict__.pop("_unamp_originals", {})
            masters = [_master(self, p, originals.get(self._var_key(p))) if _is_low(p) else p for p in parameters]
            # In `vars`, past Keras's tracking: they are tracked where they were made.
            self.__dict__["_unamp_parameters"] = parameters
            self.__dict__["_unamp_masters"] = {
                self._var_key(each): master for each, master in zip(parameters, masters, strict=True)
            }
            self.__dict__["_unamp_of_master"] = {
                self._var_key(master): each for each, master in zip(parameters, masters, strict=True)
            }
            super().build(masters)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        with suspended(thread):
            if not self.built and trainable_variables is not None:
                with tf.keras.name_scope(self.name):
                    self.build(trainable_variables)
            given = stepped(self) if trainable_variables is None else list(trainable_variables)
            masters = self._masters_of(given)
            pairs = [(each, master) for each, master in zip(given, masters, strict=True) if master is not each]
            for parameter, master in pairs:
                _catch_up(master, parameter)
            super().apply([_wide(each) for each in grads], masters)
            _round(pairs)

    def finalize_variable_values(self, var_list: Any) -> None:
        with suspended(thread):
            given = list(var_list)
            masters = self._masters_of(given)
            super().finalize_variable_values(masters)
            _round(zip(given, masters, strict=True))

    def load_own_variables(self, store: Any) -> None:
        super().load_own_variables(store)
        _round(zip(stepped(self), self._trainable_variables, strict=True))

    def set_weights(self, weights: Any) -> None:
        super().set_weights(weights)
        _round(zip(stepped(self), self._trainable_variables, strict=True))

    def get_config(self) -> dict[str, Any]:
        plain: Any = type(self).__mro__[2]
        config = super().get_config()
        return {**config, "optimizer": tf.keras.utils.serialize_keras_object(plain.from_config(dict(config)))}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        made = tf.keras.utils.deserialize_keras_object(config["optimizer"], custom_objects=custom_objects)
        _change_class(made)
        return made

    def _masters_of(self, parameters: Iterable[Any]) -> list[Any]:
        masters = self.__dict__["_unamp_masters"]
        return [masters.get(self._var_key(each), each) for each in parameters]

    def _use_weight_decay(self, variable: Any) -> bool:
        # Exclusions name parameters.
        parameter = self.__dict__["_unamp_of_master"].get(self._var_key(variable), variable)
        return bool(super()._use_weight_decay(getattr(parameter, "value", parameter)))


def _change_class(optimizer: Any) -> None:
    own: Any = type(optimizer)
    object.__setattr__(optimizer, "__class__", _with_masters(own))


@cache
def _with_masters(of: Any) -> type:
    """Return the subclass of an optimizer's class that steps master weights."""
    made = type(of.__name__, (MasterWeights, of), {"__module__": of.__module__, "__doc__": of.__doc__})
    registered: type = tf.keras.utils.register_keras_serializable("unamp", "MasterWeights")(made)
    return registered


def _is_low(variable: Any) -> bool:
    return tf.as_dtype(variable.dtype).name in LOW_DTYPES


def _master(optimizer: Any, parameter: Any, original: Any) -> Any:
    """Return a master weight that starts from what the parameter was, or where it was never float32, from what it is."""
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
    """Let a master weight take over the numbers that somebody else has given to its parameter."""
    low = tf.convert_to_tensor(parameter)
    wide = tf.convert_to_tensor(master)

    def take() -> bool:
        _assign(master, tf.where(tf.cast(wide, low.dtype) == low, wide, tf.cast(low, tf.float32)))
        return True

    if not _is_compared_first(low.shape):
        take()
    elif tf.executing_eagerly():
        if not _is_rounded(low, wide):
            take()
    else:
        tf.cond(_is_rounded(low, wide), lambda: False, take)


def _is_compared_first(shape: Any) -> bool:
    """Return whether to ask if a parameter has changed is faster than to write its master weight anew.

    The answer of a GPU would have to be waited for, and a variable that is distributed cannot be written under a condition.
    """
    return (
        shape.is_fully_defined()
        and shape.num_elements() >= _LARGE
        and shape.num_elements() % 4 == 0
        and not tf.distribute.has_strategy()
        and not tf.config.list_physical_devices("GPU")
    )


def _is_rounded(low: Any, wide: Any) -> Any:
    """Return whether low numbers are others rounded, to the bit: four at a time, which take a quarter of the time."""
    first, second = (tf.bitcast(tf.reshape(each, [-1, 4]), tf.int64) for each in (low, tf.cast(wide, low.dtype)))
    return tf.reduce_all(first == second)


def _round(pairs: Iterable[tuple[Any, Any]]) -> None:
    """Let parameters take over the rounded values of their master weights."""
    for parameter, master in pairs:
        if master is not parameter:
            _assign(parameter, tf.cast(tf.convert_to_tensor(master), parameter.dtype))


def _assign(variable: Any, value: Any) -> None:
    getattr(variable, "value", variable).assign(value)


if keras_in_use():
    _with_masters(tf.keras.optimizers.SGD)  # Keras can load what another process saved, whichever optimizer that was
