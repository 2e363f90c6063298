"""Regions and `torch.func`.

`vmap` takes operations apart above PyTorch's autocast: a product with a bias becomes a product and
a sum, a layer norm a norm without parameters and more. Their rules would meet the parts, beyond the
reach of gradients that were asked for inside. While one runs in a region, every rule is therefore
carried out by a kernel of ours, which sees operations as they are called (`Plan.complete`).

`grad` and `jvp` take products with a bias apart as well, and call what is below them once more: it
is the same there.

What takes a level off is patched with the first level that was put on in a region, until the last
region closes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._functorch.eager_transforms
import torch._functorch.vmap

from unamp.adapter.replacing import AttributePatch, as_replacement
from unamp_torch.compiled import library
from unamp_torch.lasting import LASTING
from unamp_torch.state import Plan, include_kernels, thread


def for_this_level(plan: Plan) -> Plan:
    """Return the form of a plan in this thread: the complete one in a `torch.func` transform."""
    return plan if torch._C._functorch.maybe_current_level() is None else plan.complete


@as_replacement
def putting_on(original: Callable[..., int], /, *args: Any, **kwargs: Any) -> int:
    """Wrap a function that puts a level of `vmap`, `grad` or `jvp` on.

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
def _taking_off(original: Callable[..., int], /, *args: Any, **kwargs: Any) -> int:
    """Wrap one that takes a level off: the plan from before the level is in force again."""
    level = original(*args, **kwargs)
    if level in thread.transforms:
        plan = thread.transforms[level]
        thread.transforms = {other: of for other, of in thread.transforms.items() if other != level}
        if thread.plan is plan.complete:  # else regions were closed in the middle of it
            _put_in_force(plan)
    return level


def _put_in_force(plan: Plan) -> None:
    thread.plan = plan
    include_kernels(plan)
    if library is not None:
        library.set_plan(plan.compiled)


#: What takes levels off: the module, and the function's name there.
_TAKING_OFF = (
    (torch._functorch.vmap, "_vmap_decrement_nesting"),
    (torch._functorch.eager_transforms, "_grad_decrement_nesting"),
    (torch._functorch.eager_transforms, "_jvp_decrement_nesting"),
)
