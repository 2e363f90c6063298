"""Regions and `torch.func`.

`vmap` takes operations apart above PyTorch's autocast: a product with a bias becomes a product and a sum, a layer norm a norm
without parameters and more. Their rules would meet the parts, beyond the reach of gradients that were asked for inside. While
one runs in a region, every rule is therefore carried out by a kernel of ours, which sees operations as they are called.

`grad` and `jvp` take nothing apart above autocast, but call what is below them once more: for kernels that lie there, the
compiled ones on `MANY`, it is the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from unamp_torch.compiled import library
from unamp_torch.plans import Plan
from unamp_torch.state import MANY, TRACED, listen, thread

__all__ = ["begun", "begun_above", "ended", "transformed"]


def transformed(plan: Plan) -> Plan:
    """What is in force for a plan in this thread now: inside a transform of `torch.func`, the plan with kernels for all."""
    return plan if torch._C._functorch.maybe_current_level() is None else plan.whole


def begun(original: Callable[..., Any], *, whole: Callable[[Plan], bool] = lambda plan: True) -> Callable[..., Any]:
    """For the function that puts a level of `vmap` on, or of another transform that some plans have to be made whole for."""

    @functools.wraps(original)
    def begin(*args: Any, **kwargs: Any) -> Any:
        level, plan = original(*args, **kwargs), thread.plan
        if plan is not None and whole(plan) and plan.whole is not plan:
            thread.transforms = {**thread.transforms, level: plan}
            _put_in_force(plan.whole)
        return level

    return begin


def begun_above(original: Callable[..., Any]) -> Callable[..., Any]:
    """For the functions that put a level of `grad` or `jvp` on."""
    return begun(original, whole=lambda plan: plan.slot is MANY is not TRACED)


def ended(original: Callable[..., Any]) -> Callable[..., Any]:
    """For the function that takes it off."""

    @functools.wraps(original)
    def end(*args: Any, **kwargs: Any) -> Any:
        level = original(*args, **kwargs)
        if level in thread.transforms:
            plan = thread.transforms[level]
            thread.transforms = {other: of for other, of in thread.transforms.items() if other != level}
            if thread.plan is plan.whole:  # else regions were closed in the middle of it
                _put_in_force(plan)
        return level

    return end


def _put_in_force(plan: Plan) -> None:
    thread.plan = plan
    listen(plan)
    if library is not None:
        library.set_plan(plan.compiled)
