"""A probe of rules at work, before the first region.

Names and signatures of patched functions do not tell whether JAX still calls them. So small
functions are traced under a policy, once in a process; nothing is compiled, and nothing computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import jax
from jax import lax

from unamp._function_types import Function
from unamp.adapter.patching import missing
from unamp.policy import Policy
from unamp_jax import patches, plans
from unamp_jax.state import CONTEXT, DTYPES, FLOAT32

if TYPE_CHECKING:
    import jax.numpy as jnp

_LOW = DTYPES["bfloat16"]


def probe_effects() -> None:
    """Check that a product, a loop, a rule of differentiation and a batch follow a policy.

    Raises:
        FrameworkNotSupported: naming the version of JAX and the first function that does not.
    """
    patches.acquire()
    try:
        with CONTEXT(plans.plan(Policy(dtype="bfloat16"))):
            for what, found, wanted in _effects():
                if found != wanted:
                    raise missing(
                        "jax",
                        jax.__version__,
                        f"hook that {what} still asks: it gives {found}, not {wanted}",
                    )
    finally:
        patches.release()


def _effects() -> Iterator[tuple[str, object, object]]:
    """Yield parts of JAX, each with the dtypes that it gives, and those that it should give."""
    x = jax.ShapeDtypeStruct((2, 2), FLOAT32)
    rows = jax.ShapeDtypeStruct((1, 2, 2), FLOAT32)

    def dtypes(function: Function, *given: jax.ShapeDtypeStruct) -> object:
        return jax.tree.leaves(
            jax.tree.map(lambda leaf: leaf.dtype, jax.eval_shape(function, *given))
        )

    def primitive(x: jax.Array) -> jax.Array:
        return lax.dot_general_p.bind(x, x, **_PRODUCT)

    def product(x: jax.Array) -> jax.Array:
        return x @ x

    yield "a function of jax.numpy", dtypes(product, x), [_LOW]
    yield "a primitive", dtypes(primitive, x), [_LOW]
    yield "jax.jit", dtypes(jax.jit(product), x), [_LOW]
    yield "jax.vmap", dtypes(jax.vmap(product), rows), [_LOW]
    yield (
        "jax.lax.scan",
        dtypes(lambda x, rows: lax.scan(lambda c, row: (c @ row, c @ row), x, rows), x, rows),
        [FLOAT32, _LOW],
    )
    seen: list[jnp.dtype] = []
    low = jax.ShapeDtypeStruct((2, 2), _LOW)
    yield (
        "jax.custom_vjp",
        dtypes(lambda x, cotangent: jax.vjp(_ruled(seen), x)[1](cotangent), x, low),
        [FLOAT32],
    )
    yield "a rule of jax.custom_vjp", seen, [_LOW, _LOW]


#: Parameters of a product of matrices.
_PRODUCT = {
    "dimension_numbers": (((1,), (0,)), ((), ())), "precision": None,
    "preferred_element_type": None, "out_sharding": None,
}  # fmt: skip


def _ruled(seen: list[jnp.dtype]) -> jax.custom_vjp:
    """Return a function with a rule of its own, which notes the dtypes of the products in it."""

    def product(a: jax.Array, b: jax.Array) -> jax.Array:
        seen.append((a @ b).dtype)
        return a @ b

    function = jax.custom_vjp(lambda x: x @ x)
    function.defvjp(lambda x: (product(x, x), x), lambda x, cotangent: (product(cotangent, x),))
    return function
