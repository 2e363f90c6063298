"""The time to open and close a region."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import unamp
from benchmarks.measure import Comparison, Contender

__all__ = ["comparisons"]


def comparisons() -> list[Comparison]:
    region = unamp.autocast(dtype="bfloat16")
    f = jax.jit(lambda x: x)
    names = {"region": region, "jax": jax, "f": f, "x": jnp.ones(())}
    # JAX has no region like ours. Its own context managers, which change a thread, show the least
    # cost.
    theirs = "with jax.default_matmul_precision('float32'): pass"
    opened = [
        Comparison(
            f"jax: region enter and exit, {where}",
            (
                Contender("jax.default_matmul_precision", theirs, names),
                Contender("unamp", "with region: pass", names, *outer, at_most=at_most),
            ),
        )
        for where, outer, at_most in (
            ("outermost", (), 300e-6),
            ("nested", (lambda: region,), 10e-6),
        )
    ]
    called = Comparison(
        "jax: a call of a jitted function that does nothing",
        (
            Contender("untouched", "f(x)", names),
            Contender("unamp, in a region", "f(x)", names, lambda: region, goal=1.5),
        ),
    )
    return [*opened, called]
