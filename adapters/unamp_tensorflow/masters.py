"""TensorFlow's part of Keras optimizers that step float32 master weights of low parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import tensorflow as tf

from unamp.adapter.keras_masters import MasterWeights, with_masters
from unamp.adapter.state import suspended
from unamp.dtypes import FLOAT32, LOW_DTYPES
from unamp_tensorflow.spellings import keras_in_use
from unamp_tensorflow.state import thread

if TYPE_CHECKING:
    from unamp_tensorflow.state import Gradient

#: The least size of a parameter for which comparing costs less than it saves.
_LARGE = 1 << 16


class TensorFlowMasters(MasterWeights):
    """See `unamp.adapter.keras_masters.MasterWeights`.

    A parameter may be a `tf.Variable`, which Keras also takes.
    """

    @contextmanager
    def _unamp_outside(self) -> Iterator[None]:
        with tf.init_scope(), suspended(thread):
            yield

    def _unamp_suspended(self) -> AbstractContextManager[None]:
        return suspended(thread)

    def _unamp_master(
        self, parameter: tf.Variable | tf.keras.Variable, original: tf.Tensor | None
    ) -> tf.keras.Variable:
        value = getattr(parameter, "value", parameter)
        # A variable made in a traced function has no value yet: the first step writes the master.
        begun = bool(value.is_initialized())
        with self._distribution_strategy.extended.colocate_vars_with(value):
            return self.add_variable(
                parameter.shape,
                initializer=(
                    lambda shape, dtype: tf.cast(value if original is None else original, dtype)
                )
                if begun
                else "zeros",
                dtype=FLOAT32,
                name="_".join(
                    (*re.split("[/:]", getattr(parameter, "path", parameter.name)), "master_weight")
                ),
            )

    def _unamp_wide(self, gradient: Gradient | None) -> Gradient | None:
        if gradient is None or gradient.dtype.name not in LOW_DTYPES:
            return gradient
        return tf.cast(gradient, tf.float32)  # casts the values of slices

    def _unamp_catch_up(
        self, master: tf.keras.Variable, parameter: tf.Variable | tf.keras.Variable
    ) -> None:
        low = tf.convert_to_tensor(parameter)
        wide = tf.convert_to_tensor(master)

        def take() -> bool:
            _assign(
                master, tf.where(tf.cast(wide, low.dtype) == low, wide, tf.cast(low, tf.float32))
            )
            return True

        if not _is_compared_first(low.shape):
            take()
        elif tf.executing_eagerly():
            if not _is_rounded(low, wide):
                take()
        else:
            tf.cond(_is_rounded(low, wide), lambda: False, take)

    def _unamp_round(
        self, parameter: tf.Variable | tf.keras.Variable, master: tf.keras.Variable
    ) -> None:
        _assign(parameter, tf.cast(tf.convert_to_tensor(master), parameter.dtype))

    def _unamp_excluded(self, parameter: tf.Variable | tf.keras.Variable) -> tf.Variable:
        return getattr(parameter, "value", parameter)


def _is_compared_first(shape: tf.TensorShape) -> bool:
    """Return whether comparing a parameter is faster than always writing its master weight.

    With a GPU the process would have to wait for the answer. A distributed variable cannot be
    written under a condition.
    """
    return (
        shape.is_fully_defined()
        and shape.num_elements() >= _LARGE
        and shape.num_elements() % 4 == 0
        and not tf.distribute.has_strategy()
        and not tf.config.list_physical_devices("GPU")
    )


def _is_rounded(low: tf.Tensor, wide: tf.Tensor) -> tf.Tensor:
    """Return whether low numbers equal wide numbers, rounded, to the bit.

    Four numbers are compared as one integer, which takes a quarter of the time.
    """
    first, second = (
        tf.bitcast(tf.reshape(each, [-1, 4]), tf.int64) for each in (low, tf.cast(wide, low.dtype))
    )
    return tf.reduce_all(first == second)


def _assign(variable: tf.Variable | tf.keras.Variable, value: tf.Tensor) -> None:
    getattr(variable, "value", variable).assign(value)


if keras_in_use():
    # Registers the class by which Keras loads an optimizer, of any kind, that was saved elsewhere.
    with_masters(tf.keras.optimizers.SGD, TensorFlowMasters)
