"""Threads with different policies can share a jitted function: no trace is stale."""

from __future__ import annotations

import threading

import jax
import numpy as np
from flax import nnx
from threaded import POLICIES, every_thread_has_its_own_policy

from unamp import Policy, policy_region

A = jax.random.normal(jax.random.key(0), (4, 4))
LAYER = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
ROUNDS = 100


@jax.jit
def f(a):
    return a @ a, a + a, LAYER(a)


@jax.jit
def g(a):
    return jax.nn.softmax(f(a)[2]) @ a


def test_every_thread_has_its_own_policy_on_one_jitted_function():
    """In every round eight threads start together; in the first nothing is compiled yet."""
    found, start = [[] for _ in POLICIES], threading.Barrier(len(POLICIES))

    def work(policy: Policy | None, results: list) -> None:
        for _ in range(ROUNDS):
            start.wait()
            if policy is None:
                results.append(g(A))
            else:
                with policy_region(policy):
                    results.append(g(A))

    threads = [
        threading.Thread(target=work, args=given) for given in zip(POLICIES, found, strict=True)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert g._cache_size() <= len(POLICIES)
    g.clear_cache()
    for policy, results in zip(POLICIES, found, strict=True):
        if policy is None:
            wanted = g(A)
        else:
            with policy_region(policy):
                wanted = g(A)
        assert len(results) == ROUNDS
        for each in results:
            assert each.dtype == wanted.dtype
            assert np.array_equal(each, wanted)
    assert {str(results[0].dtype) for results in found} == {"float32", "float16", "bfloat16"}


def test_every_thread_has_its_own_policy_eagerly():
    every_thread_has_its_own_policy(
        lambda: [str(each.dtype) for each in (A @ A, A + A, LAYER(A))], 2.0
    )
