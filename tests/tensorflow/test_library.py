"""docs/examples/library.py, which knows no framework, keeps its promises on TensorFlow."""

from __future__ import annotations

import agnostic
import keras
import tensorflow as tf
from agnostic import test_the_library_keeps  # noqa: F401

FRAMEWORK = agnostic.Framework(
    tensor=tf.constant,
    parameter=keras.Variable,
    sgd=lambda parameters, rate: keras.optimizers.SGD(rate),
    numpy=lambda tensor: tf.cast(tensor, tf.float64).numpy(),
)
