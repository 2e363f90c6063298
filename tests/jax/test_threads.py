"""Threads with policies of their own on one jitted function; no trace is stale, nothing leaks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from threaded import POLICIES, every_thread_has_its_own_policy

A = jnp.ones((4, 4))
LAYER = nnx.Linear(4, 4, rngs=nnx.Rngs(0))


@jax.jit
def f(a):
    return a @ a, a + a, LAYER(a)


def test_every_thread_has_its_own_policy_on_one_jitted_function():
    every_thread_has_its_own_policy(lambda: [str(each.dtype) for each in f(A)], 2.0)
    assert f._cache_size() <= len(POLICIES)


def test_every_thread_has_its_own_policy_eagerly():
    every_thread_has_its_own_policy(lambda: [str(each.dtype) for each in (A @ A, A + A, LAYER(A))], 2.0)
