"""A batch norm that subtracts squares works with the guide's advice; norms of matrices."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import unamp

#: bfloat16 rounds the mean of these up: its square is then more than the mean of the squares.
X, ONE = jnp.array([[8.0625], [8.125]]), jnp.eye(1)


def batch_norm(x):
    """Return x normalised, with the variance as a difference of squares."""
    mean = jnp.mean(x, 0)
    variance = jnp.mean(jnp.square(x), 0) - jnp.square(mean)
    return (x - mean) * lax.rsqrt(variance + 1e-5)


def outside(x):
    with unamp.autocast(enabled=False):
        return batch_norm(x.astype(jnp.float32))


ADVICE = {
    "deny the mean": ("O1", ["mean"], batch_norm),
    "deny the squares too": ("O1", ["square", "mean"], batch_norm),
    "a float32 input": ("O1", [], lambda x: batch_norm(x.astype(jnp.float32))),
    "outside of the region": ("O2", [], outside),
}


def test_it_is_nan_where_nothing_is_done():
    with unamp.autocast(dtype="bfloat16"):
        assert np.isnan(batch_norm(X @ ONE)).all()


@pytest.mark.parametrize("advice", ADVICE)
def test_with_the_advice_it_is_what_float32_gives(advice):
    level, deny, norm = ADVICE[advice]
    plain = batch_norm(X @ ONE)
    with unamp.autocast(level=level, dtype="bfloat16", deny=deny):
        low = norm(X @ ONE)
    np.testing.assert_allclose(low, plain, rtol=1e-5)


@pytest.mark.parametrize("order", [None, 2, "nuc"])
def test_a_norm_of_a_matrix_is_low_without_a_low_kernel_for_singular_values(order):
    matrix = jnp.arange(12.0).reshape(3, 4)
    plain = jnp.linalg.norm(matrix, order)
    with unamp.autocast(level="O2", dtype="float16"):
        found = jnp.linalg.norm(matrix, order)
    assert found.dtype == jnp.float16
    np.testing.assert_allclose(found, plain, rtol=1e-3)
