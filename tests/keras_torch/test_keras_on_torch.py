"""Keras with its torch backend is torch code: the torch adapter covers it."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import torch

import unamp


@pytest.fixture
def model():
    keras.utils.set_random_seed(1)
    made = keras.Sequential(
        [keras.layers.Dense(16, activation="relu"), keras.layers.LayerNormalization(), keras.layers.Dense(3)]
    )
    made.build([None, 8])
    return made


def data():
    x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
    return x, (x[:, 0] > 0).astype("int32")


def test_the_backend():
    assert keras.backend.backend() == "torch"


def test_products_run_low_and_norms_in_float32(model):
    x, _ = data()
    with unamp.trace() as trace, unamp.autocast("cpu", dtype="bfloat16"):
        model(x)
    computed = {record.op: record.compute for record in trace.records}
    products = {op: dtype for op, dtype in computed.items() if op in ("matmul", "mm", "addmm", "linear", "tensordot")}
    assert products
    assert set(products.values()) == {"bfloat16"}
    assert model(x).dtype == torch.float32


def test_fit(model):
    x, y = data()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    with unamp.autocast("cpu", dtype="bfloat16"):
        losses = model.fit(x, y, epochs=5, batch_size=16, verbose=0).history["loss"]
    assert losses[-1] < 0.95 * losses[0]
    assert {variable.value.dtype for variable in model.trainable_variables} == {torch.float32}
    assert unamp.current_policy() is None
