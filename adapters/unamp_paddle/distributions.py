"""Patches that let Paddle's own distributions and transforms compute in float32 in a region.

They are written for float32 and float64: with low parameters some draw infinities, others raise.
Low parameters become float32 at every level. Where a policy would make them compute low, their
other arguments become float32, too, and the operations inside them follow no rule.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from paddle import distribution

from unamp._function_types import Function
from unamp.adapter.plans import DRAWING, lowers
from unamp.adapter.replacing import CodePatch, PatchGroup, Replacement, as_replacement
from unamp.adapter.wrapping import own_methods
from unamp.policy import Rule
from unamp_paddle.casting import cast, convert
from unamp_paddle.native import under_rule
from unamp_paddle.state import FLOAT32, Plan, thread

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


def _in_float32(applies: Callable[[Plan], bool]) -> Replacement:
    """Return the decorator that has a function compute in float32 where `applies` to the plan."""

    @as_replacement
    def run(original: Function, /, *args: Any, **kwargs: Any) -> Any:
        plan = thread.plan
        if plan is None or not applies(plan):
            return original(*args, **kwargs)
        with under_rule(Rule.FP32):
            wide = {name: convert(cast, FLOAT32, value) for name, value in kwargs.items()}
            return original(*(convert(cast, FLOAT32, value) for value in args), **wide)

    return run


def _exponentiated(original: Function) -> Function:
    """Return the replacement of `Distribution.prob`, which may call a `log_prob` of a user's."""
    in_float32 = _in_float32(compute_low)(original)

    def prob(self: distribution.Distribution, value: Any) -> Any:
        own = type(self).__module__.startswith("paddle.")
        return (in_float32 if own else original)(self, value)

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
    return tuple(CodePatch(function, _in_float32(_may_be_low)) for function in functions)


@cache
def computing() -> PatchGroup:
    """Return the patches by which distributions compute in float32."""
    functions = (
        *_own(distribution.Distribution, _DRAWING),
        *_own(distribution.Transform, _TRANSFORMING),
        distribution.kl_divergence,
    )
    patches = (CodePatch(function, _in_float32(compute_low)) for function in functions)
    return PatchGroup((*patches, CodePatch(distribution.Distribution.prob, _exponentiated)))
