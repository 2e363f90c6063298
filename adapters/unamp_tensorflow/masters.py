"""TensorFlow's part in Keras optimizers that step a float32 master weight of low parameters."""

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

#: The fewest numbers of a parameter for which a condition costs less than it saves.
_LARGE = 1 << 16


class TensorFlowMasters(MasterWeights):
    """See `unamp.adapter.keras_masters.MasterWeights`.

    A variable may be TensorFlow's own, which Keras takes, too.
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
        # A variable that the traced function itself makes has no value before the first step, which
        # sees to it.
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
        return tf.cast(gradient, tf.float32)  # of slices the values

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
    """Return whether asking if a parameter has changed is faster than writing its master weight.

    The answer of a GPU would have to be waited for, and a variable that is distributed cannot be
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
    """Return whether low numbers are others rounded, to the bit.

    Four are compared at a time, which takes a quarter of the time.
    """
    first, second = (
        tf.bitcast(tf.reshape(each, [-1, 4]), tf.int64) for each in (low, tf.cast(wide, low.dtype))
    )
    return tf.reduce_all(first == second)


def _assign(variable: tf.Variable | tf.keras.Variable, value: tf.Tensor) -> None:
    getattr(variable, "value", variable).assign(value)


if keras_in_use():
    # Keras can load what another process saved, whichever optimizer that was.
    with_masters(tf.keras.optimizers.SGD, TensorFlowMasters)
