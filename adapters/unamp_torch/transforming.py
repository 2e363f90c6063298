"""Regions and the transforms of `torch.func`, and forward-mode gradients.

`vmap` takes operations apart above PyTorch's autocast: a product with a bias becomes a product and
a sum, a layer norm a norm without parameters and more. There autocast's rules would meet the parts,
below the level where gradients inside the transform are computed. So while a transform runs in a
region, kernels of ours carry out every rule: they see operations as they are called
(`Plan.complete`). `grad` and `jvp` take products with a bias apart as well, so the same holds.
In forward mode PyTorch computes tangents within an operator, with operations that must not meet
rules either. Its one level has the number 0, and those of `torch.func` begin with 1.

The functions that leave a level are patched when the first level is entered in a region, until the
last region closes. Dynamo enters and leaves levels itself while it traces, and makes nodes of the
functions that it finds in PyTorch's modules: those are patched there, too, so that levels in a
compiled function are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._functorch.eager_transforms
import torch._functorch.predispatch
import torch._functorch.vmap
from torch.autograd import forward_ad

from unamp.adapter.replacing import AttributePatch, as_replacement
from unamp_torch.compiled import library
from unamp_torch.lasting import LASTING
from unamp_torch.state import Plan, include_kernels, thread

#: Where dynamo finds the functions of `jvp`. In PyTorch 2.10 they are those in C++.
_OF_JVP = (
    torch._functorch.predispatch
    if hasattr(torch._functorch.predispatch, "_jvp_increment_nesting")
    else torch._C._functorch
)


def for_this_level(plan: Plan) -> Plan:
    """Return the form of a plan in this thread: complete in a transform, and in forward mode."""
    transformed = torch._C._functorch.maybe_current_level() is not None
    return plan.complete if transformed or forward_ad._current_level >= 0 else plan


@as_replacement
def putting_on(original: Callable[..., int], /, *args: Any, **kwargs: Any) -> int:
    """Wrap a function that enters a level of `vmap`, `grad`, `jvp` or forward mode.

    A plan in force becomes complete.
    """
    level, plan = original(*args, **kwargs), thread.plan
    if plan is not None and plan.complete is not plan:
        LASTING.add(
            __name__, lambda: (AttributePatch(*place, _taking_off) for place in _TAKING_OFF)
        )
        thread.transforms = {**thread.transforms, level: plan}
        _put_in_force(plan.complete)
    return level


@as_replacement
def _taking_off(original: Callable[..., int | None], /, *args: Any, **kwargs: Any) -> int:
    """Wrap a function that leaves a level: the plan from before it is in force again."""
    level = original(*args, **kwargs) or 0
    if level in thread.transforms:
        plan = thread.transforms[level]
        thread.transforms = {other: of for other, of in thread.transforms.items() if other != level}
        if thread.plan is plan.complete:  # else regions were closed inside the level
            _put_in_force(plan)
    return level


def _put_in_force(plan: Plan) -> None:
    thread.plan = plan
    include_kernels(plan)
    if library is not None:
        library.set_plan(plan.compiled)


#: The functions by which dynamo enters a level: the name of the module, and the name there.
IN_GRAPHS = (
    ("torch._C._functorch", "_vmap_increment_nesting"),
    ("torch._C._functorch", "_grad_increment_nesting"),
    ("torch._functorch.predispatch", "_vmap_increment_nesting"),
    (_OF_JVP.__name__, "_jvp_increment_nesting"),
)

#: The functions that leave a level: the module, and the name there. A level that is left through
#: two of them is left once.
_TAKING_OFF = (
    (torch._functorch.vmap, "_vmap_decrement_nesting"),
    (torch._functorch.eager_transforms, "_grad_decrement_nesting"),
    (torch._functorch.eager_transforms, "_jvp_decrement_nesting"),
    (forward_ad, "exit_dual_level"),
    (torch._C._functorch, "_vmap_decrement_nesting"),
    (torch._C._functorch, "_grad_decrement_nesting"),
    (torch._functorch.predispatch, "_vmap_decrement_nesting"),
    (_OF_JVP, "_jvp_decrement_nesting"),
)
