"""docs/examples/library.py, which knows no framework, on TensorFlow's tensors."""

from __future__ import annotations

import agnostic
import keras
import pytest
import tensorflow as tf

FRAMEWORK = agnostic.Framework(
    tensor=tf.constant,
    parameter=keras.Variable,
    sgd=lambda parameters, rate: keras.optimizers.SGD(rate),
    numpy=lambda tensor: tf.cast(tensor, tf.float64).numpy(),
)


@pytest.mark.parametrize("promise", agnostic.PROMISES)
def test_the_library_keeps(promise: str) -> None:
    agnostic.PROMISES[promise](FRAMEWORK)
