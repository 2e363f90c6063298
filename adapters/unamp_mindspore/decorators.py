"""The marks of unamp's decorators on a function, for a compiler that runs no decorators."""

from __future__ import annotations

from typing import Any

from unamp._compiler_marks import NOT_COMPILED
from unamp._region_decorator import MARK
from unamp.custom_function import AS_FORWARD, CAST_INPUTS
from unamp.errors import NotExpressible
from unamp.policy import Policy
from unamp.registration import OPERATION, of_every_operation
from unamp.results import WIDENED
from unamp.vocabulary import vocabulary
from unamp_mindspore.plans import plan
from unamp_mindspore.state import device


def stated(policy: Policy, device: str | None = None) -> Policy | None:
    """Return a policy as MindSpore carries it out; None where it changes nothing.

    A preset that delegates becomes one with lists.
    """
    made = plan(policy, device)
    return None if made is None else made.policy


def inside(function: object, around: Policy | None) -> tuple[Policy | None, list[str]]:
    """Return the policy inside a function, and the dtypes that its inputs are cast to.

    The innermost of its decorators decides.

    Returns:
        The policy, None where it changes nothing; and the dtypes of `unamp.custom_fwd`, the
        outermost first.

    Raises:
        NotExpressible: where a decorator casts the function's result.
    """
    policy, casts = around, []
    function = getattr(function, "__func__", function)
    while function is not None:
        if _own(function, WIDENED):
            raise NotExpressible(getattr(function, NOT_COMPILED))
        mark, target, operation = (_own(function, name) for name in (MARK, CAST_INPUTS, OPERATION))
        if mark is not None:
            for region in mark.regions():
                if region.covers("mindspore", device()):
                    policy = stated(region.policy, region.device)
        if operation in vocabulary() and policy is not None:
            policy = of_every_operation(operation, policy)
        if target is not None and policy is not None:
            casts.append(target)
            policy = None
        function = getattr(function, "__wrapped__", None)
    return policy, casts


def inside_backward(bprop: object, construct: object, forward: Policy | None) -> Policy | None:
    """Return the policy inside a cell's `bprop`: None, as in PyNative mode, without a decorator."""
    as_forward = getattr(bprop, AS_FORWARD, False) and cast_inputs_of(construct) is None
    return inside(bprop, forward if as_forward else None)[0]


def _own(function: object, name: str) -> Any:
    """Return the mark that a decorator left on this function, or None.

    A mark that `functools.wraps` copied from the function inside does not count.
    """
    found = getattr(function, name, None)
    return None if found is getattr(getattr(function, "__wrapped__", None), name, None) else found


def cast_inputs_of(function: object) -> str | None:
    """Return the dtype that `unamp.custom_fwd` casts a function's inputs to; None for no cast."""
    while function is not None:
        target: str | None = getattr(function, CAST_INPUTS, None)
        if target is not None:
            return target
        function = getattr(function, "__wrapped__", None)
    return None
