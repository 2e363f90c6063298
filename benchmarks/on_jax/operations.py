"""The time of one eager operation in a region, after the last region, and of a function's trace."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

import unamp
from benchmarks.measure import Comparison, Contender
from benchmarks.processes import Elsewhere

__all__ = ["aftermath", "comparisons", "tracing"]

_LEFT_ALONE = ("jax.nn.relu(x)", "x + y", "jnp.tanh(x)")

#: The statement with unamp, and the statement without it.
_CAST = {
    "jnp.matmul(x, y)": "jnp.matmul(x.astype(jnp.bfloat16), y.astype(jnp.bfloat16))",
    "jnp.exp(low)": "jnp.exp(low.astype(jnp.float32))",
    "jax.nn.softmax(low)": "jax.nn.softmax(low.astype(jnp.float32))",
}


def _names() -> dict[str, object]:
    x, y = jnp.ones([4, 4]), jnp.ones([4, 4])
    return {"jax": jax, "jnp": jnp, "x": x, "y": y, "low": x.astype(jnp.bfloat16)}


def _region() -> unamp.Region:
    return unamp.autocast(dtype="bfloat16")


def comparisons() -> list[Comparison]:
    alone = [
        Comparison(
            f"jax: {statement}, which the policy leaves alone",
            (
                Contender("untouched", statement, _names()),
                Contender("unamp, in a region", statement, _names(), _region, goal=1.15),
            ),
        )
        for statement in _LEFT_ALONE
    ]
    cast = [
        Comparison(
            f"jax: {statement}, cast",
            (
                Contender("astype by hand", by_hand, _names()),
                Contender("unamp, in a region", statement, _names(), _region, goal=1.0),
            ),
        )
        for statement, by_hand in _CAST.items()
    ]
    return alone + cast


def tracing() -> list[Comparison]:
    weights = [jnp.ones([16, 16]) for _ in range(20)]

    def network(x: jax.Array) -> jax.Array:
        for weight in weights:
            for _ in range(5):
                x = jax.nn.relu(jnp.matmul(x, weight) + 1.0)
                x = jnp.tanh(x) * 0.5 + x
        return x

    # a new function each time: JAX keeps the traces of old ones
    statement = "jax.jit(lambda x: network(x)).trace(x)"
    names = {"jax": jax, "network": network, "x": jnp.ones([4, 16])}
    return [
        Comparison(
            "jax: tracing 600 operations",
            (
                Contender("untouched", statement, names),
                Contender("unamp, in a region", statement, names, _region, goal=1.3),
            ),
        )
    ]


def aftermath() -> list[Comparison]:
    return [
        Comparison(
            f"jax: {statement}, after the last region",
            (
                Elsewhere("in a process without a region", _nothing, partial(_plain, statement)),
                Elsewhere("after a region", _one_region, partial(_plain, statement), goal=1.02),
            ),
        )
        for statement in ("x + y", "jax.nn.gelu(x)")
    ]


def _plain(statement: str) -> Contender:
    return Contender("", statement, _names())


def _nothing() -> None:
    pass


def _one_region() -> None:
    with _region():
        jax.nn.gelu(jnp.ones([4, 4]) @ jnp.ones([4, 4]))
