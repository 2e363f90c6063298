"""The other frameworks' examples run through the dialects on JAX's arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from spoken import (
    mindspores_example,
    paddles_example,
    paddles_scaler_says_what_to_use,
    test_mindspores_scalers_on_gradients_that_are_values,  # noqa: F401
    torchs_example,
)

import unamp
from unamp.dialects.keras import mixed_precision
from unamp.dialects.torch import amp as torch_amp

KEY = jax.random.key(0)


class Net(nnx.Module):
    def __init__(self):
        self.conv = nnx.Conv(1, 2, (3, 3), rngs=nnx.Rngs(0))
        self.fc = nnx.Linear(2 * 4 * 4, 3, rngs=nnx.Rngs(1))

    def __call__(self, x):
        return jax.nn.softmax(self.fc(nnx.relu(self.conv(x)).reshape(x.shape[0], -1)))


def test_paddles_example():
    conv, data = (
        nnx.Conv(3, 2, (3, 3), use_bias=False, rngs=nnx.Rngs(0)),
        jax.random.uniform(KEY, (4, 8, 8, 3)),
    )
    paddles_example(
        "jax", conv, data, jax.random.uniform(KEY, (2, 3)), jax.random.uniform(KEY, (2, 3))
    )
    model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    paddles_scaler_says_what_to_use(
        jnp.float32(1.0), nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    )


def test_torchs_example():
    torchs_example("jax", jnp.matmul, *(jax.random.uniform(KEY, (8, 8)) for _ in range(4)))


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_mindspores_example(level):
    mindspores_example(
        "jax", Net(), jnp.ones((2, 4, 4, 1)), level, "float16", {"conv2d", "linear", "relu"}
    )


def test_torchs_scaler_takes_gradients():
    model = nnx.Linear(4, 2, rngs=nnx.Rngs(0))
    optimizer, scaler = (
        nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param),
        torch_amp.GradScaler("cpu"),
    )
    before = np.asarray(model.kernel.get_value())
    with torch_amp.autocast("cpu", dtype="bfloat16"):
        gradients = nnx.grad(lambda m: scaler.scale(jnp.float32(m(jnp.ones((1, 4)))).sum()))(model)
    scaler.step(optimizer, model, gradients=gradients)
    scaler.update()
    np.testing.assert_allclose(np.asarray(model.kernel.get_value()), before - 0.1, rtol=1e-5)


def test_keras_global_policy_is_keras_own():
    import keras

    before = keras.config.dtype_policy()
    try:
        mixed_precision.set_global_policy("mixed_bfloat16")
        layer = keras.layers.Dense(2)
        assert layer(np.ones((1, 3), "float32")).dtype == jnp.bfloat16
        with unamp.autocast(dtype="float16"):  # the region decides, not the layer
            assert layer(np.ones((1, 3), "float32")).dtype == jnp.float16
    finally:
        keras.config.set_dtype_policy(before)
