"""Shared by the scripts for Keras: a training step of a model on TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf
from client import Region, Step


@contextmanager
def eagerly() -> Iterator[None]:
    """Run every tf.function eagerly."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


def step_of(model: keras.Model, region: Region, inputs: Any, loss_of: Callable[[tf.Tensor], tf.Tensor]) -> Step:
    """Return a step of SGD in a tf.function that calls the model in a region."""
    optimizer = keras.optimizers.SGD(1e-3)
    optimizer.build(model.trainable_variables)

    @tf.function
    def train() -> tf.Tensor:
        with tf.GradientTape() as tape:
            with region():
                outputs = model(inputs, training=True)
            loss = loss_of(tf.cast(outputs, tf.float32))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
        return loss

    return lambda: float(train())
