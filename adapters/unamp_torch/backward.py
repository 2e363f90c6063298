"""Regions and the backward pass, which runs in its forward's dtypes, in a region or outside.

Checkpointing is the exception: it runs the forward once more in the backward pass, under the region
of the first time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ParamSpec, TypeVar

import torch
from torch import set_autocast_dtype as set_dtype

from unamp._function_types import Function
from unamp.adapter.replacing import as_replacement
from unamp.policy import Policy
from unamp.regions import Region, innermost_region, policy_region
from unamp_torch.state import KERNEL_KEYS, include_kernels, set_excluded, set_included, thread
from unamp_torch.writes import drop_casts

P = ParamSpec("P")
R = TypeVar("R")

_OFF = Policy(enabled=False)


@contextmanager
def suspended() -> Iterator[None]:
    """Take the policy out of force in this thread, and native autocast off, while open.

    No kernel watches writes to parameters meanwhile, so the casts made before are dropped.
    """
    plan, thread.plan = thread.plan, None
    for each in KERNEL_KEYS:
        set_included(each.key, False)
    try:
        with torch._C._DisableAutocast():
            yield
    finally:
        thread.plan = plan
        include_kernels(plan)
        drop_casts()
        # A region opened meanwhile found no plan around it: with the same guard, it left that off.
        for device, key, dtype, usual in () if plan is None else plan.guard:
            set_excluded(key, False)
            if dtype is not usual:
                set_dtype(device, dtype)


def without_policy() -> AbstractContextManager[object]:
    """Take the policy out of force while the context is open, also as a part of a graph."""
    return policy_region(_OFF, framework="torch") if torch.compiler.is_compiling() else suspended()


@as_replacement
def runs_without_policy(original: Callable[..., R], /, *args: Any, **kwargs: Any) -> R:
    """Wrap a function so that it runs with no policy in force.

    Wrapped are the engine that runs backward passes, where the operators that compute gradients
    would otherwise be cast like any others; the function that freezes a traced module, which would
    put TorchScript's autocast on top of the traced casts; and the function that takes an exported
    program's operators apart, which would follow the rules anew.
    """
    if thread.plan is None:
        return original(*args, **kwargs)
    if thread.plan.delegated:
        # PyTorch's own AMP stays in force, as under torch.autocast; for the casts see `writes`.
        try:
            return original(*args, **kwargs)
        finally:
            drop_casts()
    with suspended():
        return original(*args, **kwargs)


@as_replacement
def checkpointing(
    original: Callable[..., R], /, function: Function, *args: Any, **kwargs: Any
) -> R:
    """Wrap a function that checkpoints its first argument, to run that again under the same region.

    Checkpointing itself remembers native autocast's state for that, and not ours.
    """
    return original(in_this_region(function), *args, **kwargs)


def recomputing(original: Any) -> type[torch.autograd.Function]:
    """Replace the class of reentrant checkpointing, with the effect of `checkpointing`."""

    class CheckpointFunction(original):  # type: ignore[misc]
        @classmethod
        def apply(cls, function: Function, *args: Any) -> object:
            return original.apply(in_this_region(function), *args)

    return CheckpointFunction


@as_replacement
def replicating(
    original: Callable[..., R], /, modules: Iterable[Function], *args: Any, **kwargs: Any
) -> R:
    """Wrap the function that runs replicas of a network, to run them under the same region.

    Each replica has a thread of its own, which PyTorch tells only that native autocast is on.
    """
    return original([in_this_region(module) for module in modules], *args, **kwargs)


def in_this_region(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that runs another in the innermost region of this thread."""
    region = innermost_region()
    return function if region is None else inside(region, function)


def inside(region: Region, function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that runs another in a region.

    The region itself is entered, also where a graph is being made.
    """

    @functools.wraps(function)
    def in_region(*args: P.args, **kwargs: P.kwargs) -> R:
        with region:
            return function(*args, **kwargs)

    return in_region
