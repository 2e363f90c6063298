"""Networks of Keras with TensorFlow: its own MobileNet, and a transformer of its layers."""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import tensorflow as tf
from keras import layers

from benchmarks.tuning.subject import Subject, images, words


def _transformer() -> keras.Model:
    tokens = keras.Input((24,), dtype="int32")
    x = layers.Embedding(128, 64)(tokens)
    for _ in range(3):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 16)(x, x))
        x = layers.LayerNormalization()(x + layers.Dense(64)(layers.Dense(256, "gelu")(x)))
    return keras.Model(tokens, layers.Dense(3)(layers.GlobalAveragePooling1D()(x)))


def networks() -> Iterator[Subject]:
    """Yield usual networks."""
    keras.utils.set_random_seed(0)
    mobile = keras.applications.MobileNetV2(
        (32, 32, 3), alpha=0.35, weights=None, classes=10, classifier_activation=None
    )
    transformer = _transformer()
    pictures = lambda seed: tf.constant(images(seed, 4, 32, 32, 3))  # noqa: E731
    for seed in range(1000, 1020):
        mobile(pictures(seed), training=True)
    yield Subject(
        "MobileNetV2 of keras.applications", mobile, lambda x: mobile(x, training=False), pictures
    )
    yield Subject(
        "a transformer of MultiHeadAttention, 3 layers", transformer,
        lambda x: transformer(x, training=False),
        lambda seed: tf.constant(words(seed, 128, 4, 24).astype("int32")), batches=15,
    )  # fmt: skip
