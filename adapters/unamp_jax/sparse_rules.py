"""The rule of `jax.experimental.sparse` for the rounding of casts from bfloat16 to float32."""

from __future__ import annotations

from functools import cache

from jax import lax

from unamp.adapter.patching import find
from unamp_jax.spellings import SPARSE


@cache
def teach() -> None:
    """Give sparse matrices a rule for `jax.lax.reduce_precision`, where they have none.

    It leaves zeros as they are.
    """
    made = find(SPARSE, "_zero_preserving_unary_op")
    for name in ("sparse_rules_bcoo", "sparse_rules_bcsr"):
        find(SPARSE, name).setdefault(
            lax.reduce_precision_p, made(lax.reduce_precision_p, linear=False)
        )
