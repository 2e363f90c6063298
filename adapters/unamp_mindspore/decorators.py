"""The marks that unamp's decorators leave on a function, for a compiler that reads the source behind them and runs none."""

from __future__ import annotations

from typing import Any

from unamp._region_decorator import MARK
from unamp.custom_function import CAST_INPUTS
from unamp.policy import Policy
from unamp_mindspore.plans import plan
from unamp_mindspore.state import device

__all__ = ["cast_inputs_of", "policy_of"]


def policy_of(function: Any, otherwise: Policy | None) -> Policy | None:
    """Return the policy in force inside a function: that of the innermost region that decorates it.

    Args:
        function: a function or a bound method.
        otherwise: the policy where no region for MindSpore decorates it.

    Returns:
        None where nothing is changed.
    """
    policy = otherwise
    while function is not None:
        mark = getattr(function, MARK, None)
        if mark is not None:
            for region in mark.regions():
                if region.covers("mindspore", device()):
                    made = plan(region.policy, region.device)
                    policy = None if made is None else made.policy
        function = getattr(function, "__wrapped__", None)
    return policy


def cast_inputs_of(function: Any) -> str | None:
    """Return the dtype to which `unamp.custom_fwd` casts the inputs of a function; None: to none."""
    while function is not None:
        target: str | None = getattr(function, CAST_INPUTS, None)
        if target is not None:
            return target
        function = getattr(function, "__wrapped__", None)
    return None
