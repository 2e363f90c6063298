"""A training step of a Keras model, on the backend that KERAS_BACKEND names.

The scripts for Keras share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
from client import Region, Step

#: Only JAX steps are compiled by XLA: on other backends that takes minutes.
_COMPILED = keras.backend.backend() == "jax"


@contextmanager
def eagerly() -> Iterator[None]:
    """Run every tf.function eagerly, where the backend is TensorFlow."""
    if keras.backend.backend() != "tensorflow":
        yield
        return
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


def step_of(
    model: keras.Model,
    region: Region,
    inputs: Any,
    targets: Any,
    loss: str | Callable[[Any, Any], Any],
) -> Step:
    """Return a step of Keras' own training, with SGD, in a region."""
    model.compile(keras.optimizers.SGD(1e-3), loss, jit_compile=_COMPILED)

    def step() -> float:
        model.reset_metrics()  # else the step returns the mean of all losses so far
        with region():
            return float(model.train_on_batch(inputs, targets))

    return step
