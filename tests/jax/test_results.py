"""`float32_results` on JAX, under its transformations."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import unamp


def test_float32_leaves_a_function_that_computes_low():
    seen = []

    @unamp.float32_results
    @unamp.autocast(dtype="bfloat16")
    def predict(x):
        y = x @ jnp.ones((4, 4))
        seen.append(y.dtype)
        return {"y": y}

    x = jnp.ones((2, 4))
    for call in (predict, jax.jit(predict), jax.vmap(predict)):
        assert call(x)["y"].dtype == jnp.float32
    assert jax.grad(lambda x: predict(x)["y"].sum())(x).dtype == jnp.float32
    assert {str(dtype) for dtype in seen} == {"bfloat16"}
