"""`float32_results` on JAX widens the results of a function, under JAX's transformations."""

from __future__ import annotations

import jax
from narrowed import test_float32_leaves_a_function_that_computes_low  # noqa: F401

WAYS = [lambda f: f, jax.jit, jax.vmap]
