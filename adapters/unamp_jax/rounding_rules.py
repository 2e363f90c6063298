"""Rules of JAX's experimental transformations for the rounding of casts from bfloat16 to float32.

Those transformations have no rule for `jax.lax.reduce_precision`, and raise where they meet it.
"""

from __future__ import annotations

from functools import cache

from jax import lax

from unamp.adapter.patching import find
from unamp_jax.spellings import JET, SPARSE


@cache
def teach(library: str) -> None:
    """Give a transformation a rule for the rounding, where it has none.

    The rounding of a sparse matrix leaves zeros as they are. That of a Taylor series is linear, as
    the cast is.
    """
    rounding = lax.reduce_precision_p
    if library == SPARSE:
        made = find(SPARSE, "_zero_preserving_unary_op")
        for name in ("sparse_rules_bcoo", "sparse_rules_bcsr"):
            find(SPARSE, name).setdefault(rounding, made(rounding, linear=False))
    if library == JET and rounding not in find(JET, "jet_rules"):
        find(JET, "deflinear")(rounding)
