"""Random draws from low parameters, and sums under other names, have float32's numbers."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from unamp_jax.facts import facts

import unamp

KEY = jax.random.key(0)
#: The factors of a product that makes 1,000 equal logits.
LEFT, RIGHT = jnp.zeros((1, 8)), jnp.ones((8, 1000))
#: Positive numbers below 1 that bfloat16 has: they are valid as probabilities, too.
PARAMETERS = jnp.asarray([0.25, 0.5, 0.75])


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_a_categorical_of_low_logits_is_not_biased(level, compiled):
    def draw(key):
        return jax.random.categorical(key, LEFT @ RIGHT, shape=(4000,))

    plain = draw(KEY)
    with unamp.autocast(level=level, dtype="bfloat16"):
        assert (LEFT @ RIGHT).dtype == jnp.bfloat16
        low = (jax.jit(draw) if compiled else draw)(KEY)
    np.testing.assert_array_equal(low, plain)


def drawn(name, dtype):
    function, low = getattr(jax.random, name), PARAMETERS.astype(dtype)
    given = dict.fromkeys(facts().drawn[name], low)
    more = {
        "choice": {"a": 3, "shape": (20,), "p": low / low.sum()},
        "multinomial": {"n": jnp.asarray(20.0, dtype), "p": low / low.sum()},
        "multivariate_normal": {"mean": low, "cov": jnp.eye(3, dtype=dtype)},
        "triangular": {"left": low, "mode": low + 1, "right": low + 2},
        "truncated_normal": {"lower": -low, "upper": low},
        "double_sided_maxwell": {"loc": low, "scale": low, "shape": (3,)},
        "generalized_normal": {"p": 0.5, "shape": (3,)},
        "uniform": {"minval": -low, "maxval": low, "shape": (3,)},
    }.get(name, {})
    needed = {"dtype": jnp.float32} if name in ("double_sided_maxwell",) else {}
    return function(KEY, **{**given, **more, **needed})


@pytest.mark.parametrize("name", facts().drawn)
def test_a_draw_from_low_parameters_is_that_from_their_float32_values(name):
    assert set(facts().drawn[name]) <= set(inspect.signature(getattr(jax.random, name)).parameters)
    if name in ("choice", "multinomial"):  # `drawn` rounds their parameters once more
        return
    with unamp.autocast(level="O2", dtype="bfloat16"):
        low = drawn(name, jnp.bfloat16)
    plain = drawn(name, jnp.float32)
    assert low.dtype == plain.dtype
    np.testing.assert_array_equal(low, plain)


def test_a_choice_by_low_probabilities_is_that_by_their_float32_values():
    chances = jnp.full(256, 1 / 256, jnp.bfloat16)
    plain = jax.random.choice(KEY, 256, (50,), p=chances.astype(jnp.float32))
    with unamp.autocast(level="O2", dtype="bfloat16"):
        np.testing.assert_array_equal(jax.random.choice(KEY, 256, (50,), p=chances), plain)


def test_what_is_only_moved_keeps_its_dtype():
    low = PARAMETERS.astype(jnp.bfloat16)
    with unamp.autocast(dtype="bfloat16"):
        assert (
            jax.random.permutation(KEY, low).dtype
            == jax.random.choice(KEY, low).dtype
            == jnp.bfloat16
        )
        assert jax.random.normal(KEY, (2,), jnp.bfloat16).dtype == jnp.bfloat16


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_dtype_that_a_caller_names_is_the_draws_by_position_and_by_name(level):
    low = PARAMETERS.astype(jnp.bfloat16)
    with unamp.autocast(level=level, dtype="bfloat16"):
        drawn = [
            jax.random.beta(KEY, low, low, (3,), jnp.bfloat16),
            jax.random.beta(KEY, low, low, dtype=jnp.bfloat16),
        ]
        drawn += [
            jax.random.gamma(KEY, low, (3,), jnp.bfloat16),
            jax.random.gamma(KEY, low, dtype=jnp.bfloat16),
        ]
    assert [each.dtype for each in drawn] == [jnp.bfloat16] * 4


def test_a_trace_of_a_matrix_has_the_dtype_that_its_caller_names():
    low = jnp.eye(2, dtype=jnp.bfloat16)
    with unamp.autocast(dtype="bfloat16", deny="*"):
        assert [
            jnp.trace(low, 0, 0, 1, jnp.float32).dtype,
            jnp.trace(low, dtype=jnp.float32).dtype,
        ] == [jnp.float32] * 2
