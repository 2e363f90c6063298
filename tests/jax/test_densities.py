"""Densities of JAX's own distributions, and rotations, are float32 at every level, as draws are.

Histograms are float32 at O1 and O2.
"""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy import stats
from jax.scipy.spatial.transform import Rotation, Slerp

import unamp

#: Numbers that bfloat16 and float16 have.
X = jnp.asarray([0.25, 0.5, 0.75])
CALLS = {
    "norm.logpdf": lambda x: stats.norm.logpdf(40 * x, 0.0, scale=0.125),
    "norm.ppf": stats.norm.ppf,
    "beta.logpdf": lambda x: stats.beta.logpdf(x, 2.0, 3.0),
    "truncnorm.logcdf": lambda x: stats.truncnorm.logcdf(x, -1.0, 1.0),
    "poisson.logpmf": lambda x: stats.poisson.logpmf(jnp.arange(3), x),
    "multivariate_normal.logpdf": lambda x: stats.multivariate_normal.logpdf(x, x, jnp.eye(3)),
    "gaussian_kde.pdf": lambda x: stats.gaussian_kde(x)(x),
    "gaussian_kde.logpdf": lambda x: stats.gaussian_kde(x, 0.5).logpdf(x),
    "gaussian_kde.resample": lambda x: stats.gaussian_kde(x).resample(jax.random.key(0), (3,)),
    "Rotation.as_matrix": lambda x: Rotation.from_quat(jnp.concatenate([x, x[:1]])).as_matrix(),
    "Rotation.apply": lambda x: _both(x).apply(x),
    "Rotation.__mul__": lambda x: (_both(x) * Rotation.from_euler("z", x[:1])).as_quat(),
    "Rotation.mean": lambda x: _both(x).mean().as_euler("xyz"),
    "Slerp": lambda x: Slerp.init(jnp.arange(2), _both(x))(x[:1]).as_mrp(),
}


def _both(x):
    return Rotation.from_rotvec(jnp.stack([x, x[::-1]]))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("name", CALLS)
def test_a_density_of_low_numbers_is_that_of_their_float32_values(name, level, compiled):
    call = jax.jit(CALLS[name]) if compiled else CALLS[name]
    plain = call(X)
    with unamp.autocast(level=level, dtype="float16"):
        for given in (X, X.astype(jnp.float16)):
            found = call(given)
            assert found.dtype == jnp.float32
            # 40 * x and the identity are exact in float16
            np.testing.assert_array_equal(found, plain)


def test_a_density_is_jaxs_own_outside_of_regions_and_in_other_threads():
    low, found = X.astype(jnp.bfloat16), []
    with unamp.autocast(level="O2", dtype="bfloat16"):
        other = threading.Thread(target=lambda: found.append(stats.norm.logpdf(low)))
        other.start()
        other.join()
    found.append(stats.norm.logpdf(low))
    assert [each.dtype for each in found] == [jnp.bfloat16] * 2


def test_low_fractions_are_possible():
    fractions = jnp.asarray([0.3, 0.2, 0.5], jnp.bfloat16)
    alpha = jnp.asarray([1.0, 2.0, 3.0])
    with unamp.autocast(level="O2", dtype="bfloat16"):
        assert jnp.isfinite(stats.dirichlet.logpdf(fractions, alpha))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_histograms_of_several_axes_count_in_float32_at_o2(dtype):
    # bfloat16 has none of these but 0 and 1, and rounds some into the next bin
    points = jnp.stack([jnp.linspace(0, 1, 60), jnp.linspace(0, 1, 60) ** 2], 1)
    x, y = points.T
    plain = jnp.histogram2d(x, y, 7), jnp.histogramdd(points, 7)
    with unamp.autocast(level="O2", dtype=dtype):
        found = jnp.histogram2d(x, y, 7), jnp.histogramdd(points, 7)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(plain), strict=True):
        np.testing.assert_array_equal(one, other)
