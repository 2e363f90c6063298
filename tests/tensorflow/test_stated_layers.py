"""float32 that a layer of Keras states on TensorFlow: see `keras_float32`."""

from __future__ import annotations

import keras_float32 as shared
import tensorflow as tf  # first: the backend that Keras takes

import unamp


def test_stated_float32_follows_the_region_and_says_so() -> None:
    shared.stated_float32_follows_the_region_and_says_so()


def test_a_layer_that_states_nothing_is_not_named() -> None:
    shared.a_layer_that_states_nothing_is_not_named()


def test_beside_a_mixed_global_policy_float32_was_stated_by_somebody() -> None:
    shared.beside_a_mixed_global_policy_float32_was_stated_by_somebody()


def test_a_class_of_ones_own_keeps_float32() -> None:
    shared.a_class_of_ones_own_keeps_float32(tf.function)
    shared.a_class_of_ones_own_keeps_float32(tf.function(jit_compile=True))


def test_a_rule_for_the_layer_keeps_float32() -> None:
    model = tf.keras.Sequential([tf.keras.layers.Dense(8, name="body"), tf.keras.layers.Dense(4, dtype="float32", name="head")])
    model.build((None, 8))
    with unamp.layer_policies(model, {"head": "float32"}), unamp.autocast(dtype="bfloat16", level="O2"):
        assert model(tf.ones([2, 8])).dtype == tf.float32
