"""Losses of Keras at O2, on every backend: their operations follow the policy.

The reductions and the sum of losses are in float32.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import keras
import numpy as np
import pytest

import unamp
from unamp import Policy, policy_region

#: A number of items that float16 cannot count.
MANY = 70_000


def at_o2() -> Any:
    return policy_region(Policy("O2", "float16"))


def test_a_loss_counts_more_numbers_than_float16_holds() -> None:
    wanted, found = np.ones((MANY, 1), "float32"), np.full((MANY, 1), 0.5, "float32")
    made = keras.ops.convert_to_tensor(wanted), keras.ops.convert_to_tensor(found)
    weights = keras.ops.convert_to_tensor(np.ones(MANY, "float32"))
    for reduction, value in {
        "sum_over_batch_size": 0.25,
        "mean_with_sample_weight": 0.25,
        "sum": 0.25 * MANY,
    }.items():
        loss = keras.losses.MeanSquaredError(reduction=reduction)
        with at_o2():
            computed = [loss(*made), loss(*made, sample_weight=weights)]
        assert [keras.backend.standardize_dtype(each.dtype) for each in computed] == ["float32"] * 2
        np.testing.assert_allclose([float(each) for each in computed], value, rtol=1e-6)


#: The arguments of losses whose first argument is whole numbers, or which need more than two.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "categorical_generalized_cross_entropy": {"q": 0.5},
    "ctc": {},
    "sparse_categorical_crossentropy": {},
    "circle": {},
}

LOSSES = [
    name
    for name in dir(keras.losses)
    if name.islower() and name not in ("get", "serialize", "deserialize")
]


@pytest.mark.parametrize(
    "name", [name for name in LOSSES if inspect.isfunction(getattr(keras.losses, name))]
)
def test_every_loss_that_keras_has_is_float32(name: str) -> None:
    shape = (8, 5, 4) if name == "ctc" else (8, 4)
    found = np.random.RandomState(0).uniform(0.1, 0.9, shape).astype("float32")
    whole = np.arange(16).reshape(8, 2) % 3 + 1 if name == "ctc" else np.arange(8) % 4
    wanted = whole if name in ARGUMENTS else np.eye(4, dtype="float32")[whole]
    loss = functools.partial(getattr(keras.losses, name), **ARGUMENTS.get(name, {}))
    made = keras.ops.convert_to_tensor(wanted), keras.ops.convert_to_tensor(found)
    with at_o2():
        computed = loss(*made)
    assert keras.backend.standardize_dtype(computed.dtype) == "float32"
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(computed), keras.ops.convert_to_numpy(loss(*made)), rtol=1e-5
    )


def test_losses_of_fit_are_added_up_in_float32() -> None:
    products = []

    def custom(wanted: Any, found: Any) -> Any:
        product = keras.ops.matmul(found, keras.ops.transpose(found))
        products.append(keras.backend.standardize_dtype(product.dtype))
        return keras.ops.cast(keras.ops.mean(product, axis=-1), "float32") * 0 + 40_000.0

    given = keras.Input((4,))
    regularizer = keras.regularizers.L2(30_000.0)  # of four ones: 120,000
    heads = [
        keras.layers.Dense(1, kernel_initializer="ones", kernel_regularizer=each)(given)
        for each in (regularizer, None)
    ]
    model = keras.Model(given, heads)
    model.compile("sgd", loss=[custom, "mse"], loss_weights=[1.0, 1e6], run_eagerly=True)
    with at_o2():
        found = model.train_on_batch(np.ones((8, 4), "float32"), [np.zeros((8, 1), "float32")] * 2)
    assert set(products) == {"float16"}  # a loss of one's own follows the policy
    assert found[0] == 40_000.0 + 16e6 + 120_000.0


class Adding(keras.layers.Layer):
    """A layer that adds a loss of 40,000 twice, in the dtype of a product."""

    def call(self, x: Any) -> Any:
        product = keras.ops.matmul(x, keras.ops.transpose(x))
        self.found = keras.backend.standardize_dtype(product.dtype)
        for _ in range(2):
            self.add_loss(keras.ops.max(product) * 10_000)
        return x


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_what_a_layer_adds_to_the_loss_is_added_up_in_float32(level: Any) -> None:
    layer = Adding()
    model = keras.Sequential(
        [keras.Input((4,)), layer, keras.layers.Dense(1, kernel_initializer="ones")]
    )
    model.compile("sgd", loss="mse")
    with unamp.autocast(level=level, dtype="float16"):
        found = model.train_on_batch(np.ones((8, 4), "float32"), np.zeros((8, 1), "float32"))
    assert layer.found == "float16"
    assert float(found) == 2 * 40_000 + 16


def test_a_policy_is_in_force_again_after_a_loss_that_raises() -> None:
    def failing(wanted: Any, found: Any) -> Any:
        raise ArithmeticError("no")

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", loss=failing, run_eagerly=True)
    x = keras.ops.ones((4, 4))
    with unamp.autocast(level="O2", dtype="float16"):
        with pytest.raises(ArithmeticError):
            model.train_on_batch(np.ones((8, 4), "float32"), np.zeros((8, 1), "float32"))
        assert keras.backend.standardize_dtype((x + x).dtype) == "float16"
    assert keras.backend.standardize_dtype((x + x).dtype) == "float32"


__all__ = [name for name in globals() if name.startswith("test_")]
