"""Patches that let Paddle's own distributions and transforms compute in float32 in a region.

They are written for float32 and float64: with low parameters some draw infinities, others raise.
Low parameters become float32 at every level. Where a policy would make them compute low, their
other arguments become float32, too, and the operations inside them follow no rule.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from paddle import distribution

from unamp._function_types import Function
from unamp.adapter.plans import DRAWING, lowers
from unamp.adapter.replacing import CodePatch, PatchGroup
from unamp.adapter.wrapping import own_methods
from unamp_paddle.native import in_float32
from unamp_paddle.state import Plan

#: Paddle's classes that call other distributions or transforms. Those may be a user's own, which
#: may hold a network, and a network follows the policy.
_CALLING_OTHERS = frozenset(
    (
        "ChainTransform",
        "Distribution",
        "IndependentTransform",
        "StackTransform",
        "Transform",
        "TransformedDistribution",
    )
)
_DRAWING = (
    "sample", "rsample", "log_prob", "prob", "probs", "log_pmf", "pmf", "cdf", "icdf", "entropy",
    "kl_divergence",
)  # fmt: skip
_TRANSFORMING = (
    "_forward", "_inverse", "_forward_log_det_jacobian", "_inverse_log_det_jacobian",
)  # fmt: skip


def compute_low(plan: Plan) -> bool:
    """Return whether distributions would compute low under a plan."""
    return lowers(plan.rule, DRAWING)


def _may_be_low(plan: Plan) -> bool:
    return plan.policy.active and plan.layer_rule is None


def _exponentiated(original: Function) -> Function:
    """Return the replacement of `Distribution.prob`, which may call a `log_prob` of a user's."""
    wide = in_float32(compute_low)(original)

    def prob(self: distribution.Distribution, value: Any) -> Any:
        own = type(self).__module__.startswith("paddle.")
        return (wide if own else original)(self, value)

    return prob


#: Yields methods of Paddle's own distributions and transforms.
_own = partial(own_methods, without=_CALLING_OTHERS)


@cache
def making() -> tuple[CodePatch, ...]:
    """Return the patches by which low parameters of distributions become float32."""
    functions = (
        *_own(distribution.Distribution, ("__init__",)),
        *_own(distribution.Transform, ("__init__",)),
        # In programs it refuses a low value.
        distribution.Distribution._check_values_dtype_in_probs,
    )
    return tuple(CodePatch(function, in_float32(_may_be_low)) for function in functions)


@cache
def computing() -> PatchGroup:
    """Return the patches by which distributions compute in float32."""
    functions = (
        *_own(distribution.Distribution, _DRAWING),
        *_own(distribution.Transform, _TRANSFORMING),
        distribution.kl_divergence,
    )
    patches = (CodePatch(function, in_float32(compute_low)) for function in functions)
    return PatchGroup((*patches, CodePatch(distribution.Distribution.prob, _exponentiated)))
