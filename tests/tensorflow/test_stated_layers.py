"""Layers of Keras that state float32 on TensorFlow keep the promises of `keras_float32`."""

from __future__ import annotations

import tensorflow as tf  # first: the backend that Keras takes
from keras_float32 import *  # noqa: F403

import unamp

COMPILERS = [tf.function, tf.function(jit_compile=True)]


def test_a_rule_for_the_layer_keeps_float32() -> None:
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Dense(8, name="body"),
            tf.keras.layers.Dense(4, dtype="float32", name="head"),
        ]
    )
    model.build((None, 8))
    with (
        unamp.layer_policies(model, {"head": "float32"}),
        unamp.autocast(dtype="bfloat16", level="O2"),
    ):
        assert model(tf.ones([2, 8])).dtype == tf.float32
