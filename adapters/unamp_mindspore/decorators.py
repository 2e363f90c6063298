"""What unamp's decorators on a function would do, for a compiler that reads the source behind them and never runs them."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

from unamp import _region_decorator, custom_function
from unamp.policy import Policy
from unamp.regions import Region
from unamp_mindspore.plans import plan

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
    for held in _closures(function, _region_decorator.__file__):
        region = getattr(held.get("context"), "__self__", None)
        if isinstance(region, Region) and region.framework in (None, "mindspore"):
            made = plan(region.policy, region.device)
            policy = None if made is None else made.policy
    return policy


def cast_inputs_of(function: Any) -> str | None:
    """Return the dtype to which `unamp.custom_fwd` casts the inputs of a function; None: to none."""
    targets = (held.get("target") for held in _closures(function, custom_function.__file__))
    return next((target for target in targets if target is not None), None)


def _closures(function: Any, file: str) -> Iterator[dict[str, Any]]:
    """Return what the wrappers around a function that a file of unamp's makes have closed over, the outermost first."""
    while function is not None:
        code = getattr(function, "__code__", None)
        if isinstance(code, types.CodeType) and code.co_filename == file:
            yield dict(zip(code.co_freevars, (cell.cell_contents for cell in function.__closure__ or ()), strict=True))
        function = getattr(function, "__wrapped__", None)
