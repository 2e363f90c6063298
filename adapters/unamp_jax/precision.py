"""The precision that a caller states for one product: it is kept, whatever list names the product.

``precision="highest"`` and `jax.default_matmul_precision` are about a float32 product, so it is
one. An algorithm for low operands leaves operands as they are. ``preferred_element_type=float32``
is about the result alone: it is the dtype in which products of low operands are added up.
"""

from __future__ import annotations

import jax
import numpy as np
from jax import lax

from unamp.dtypes import LOW_DTYPES
from unamp.policy import Rule

#: Words for "as fast as it gets", which state nothing.
_FAST = frozenset(
    {
        None,
        "default",
        "bfloat16",
        "fastest",
        "DEFAULT",
        lax.Precision.DEFAULT,
        lax.DotAlgorithmPreset.DEFAULT,
    }
)


def stated_rule(precision: lax.PrecisionLike) -> Rule | None:
    """Return the rule that a product's precision means; None where its caller states none.

    Args:
        precision: the argument of that name, or a primitive's parameter.
    """
    if precision is None:
        precision = jax.config.jax_default_matmul_precision
    if isinstance(precision, lax.DotAlgorithm):
        return (
            Rule.UNTOUCHED
            if str(np.dtype(precision.lhs_precision_type)) in LOW_DTYPES
            else Rule.FP32
        )
    both = precision if isinstance(precision, (tuple, list)) else (precision,)
    if all(one in _FAST for one in both):
        return None
    words = [str(getattr(one, "name", one)) for one in both]
    # "BF16_BF16_F32" is an algorithm for low operands, "BF16_BF16_F32_X3" one for float32 ones in
    # several parts.
    low = any(
        word.startswith(("BF16_", "F16_", "ANY_")) and not word.split("_")[-1].startswith("X")
        for word in words
    )
    return Rule.UNTOUCHED if low else Rule.FP32


def wide_result(preferred: jax.typing.DTypeLike | None) -> bool:
    """Return whether a caller wants a result that is not low.

    The argument is made for low operands.
    """
    return preferred is not None and str(np.dtype(preferred)) not in LOW_DTYPES
