"""Traces of a training step of Keras, on every backend.

Every layer is in them once, with its name and the same work.
"""

from __future__ import annotations

import keras
import numpy as np

import unamp
from unamp.tracing import work_of

BATCH, LENGTH, WIDTH, HEADS, OF_HEAD, HIDDEN, WORDS = 4, 8, 16, 2, 4, 32, 50
PLACES = BATCH * LENGTH
PRODUCTS = {
    "inner.attention": PLACES * (4 * WIDTH * HEADS * OF_HEAD + 2 * LENGTH * HEADS * OF_HEAD),
    "inner.hidden": PLACES * WIDTH * HIDDEN,
    "inner.out": PLACES * HIDDEN * WIDTH,
    "words": PLACES * WIDTH * WORDS,
}


def model() -> keras.Model:
    layers = keras.layers
    words = layers.ReversibleEmbedding(WORDS, WIDTH, name="words")
    inside = keras.Input((LENGTH, WIDTH))
    attended = layers.MultiHeadAttention(HEADS, OF_HEAD, name="attention")(inside, inside)
    hidden = layers.Dense(HIDDEN, activation="relu", name="hidden")(attended)
    inner = keras.Model(inside, layers.Dense(WIDTH, name="out")(hidden), name="inner")
    given = keras.Input((LENGTH,), dtype="int32")
    made = keras.Model(given, words(inner(words(given)), reverse=True))
    made.compile(
        "sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True
    )
    return made


def test_a_training_step_is_the_same_work_on_every_backend() -> None:
    made = model()
    data = np.zeros((BATCH, LENGTH), "int32")
    for _ in range(2):
        with unamp.trace() as trace:
            made.train_on_batch(data, data)
        found: dict[str, int] = {}
        for record in trace.records:
            _, _, layer = (record.layer or "").partition(".")
            work = work_of(record)
            if work is not None and work.products:
                name = next((each for each in PRODUCTS if layer.startswith(each)), layer)
                found[name] = found.get(name, 0) + work.products
        assert found == PRODUCTS
        assert trace.work.products == sum(PRODUCTS.values())


__all__ = [name for name in globals() if name.startswith("test_")]
