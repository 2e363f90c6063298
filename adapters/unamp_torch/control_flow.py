"""Regions and the operators that take functions: `torch.cond`, `torch.while_loop` and the like.

PyTorch keeps them in Python. They go past our dispatch keys (`let_pass`), and rules reach into the
functions as these are called. Their backward passes make a graph of a function and its gradient,
for which they run the function again. That is under the region of the first time, and nothing else
in a backward pass is: so the graph is made there, and run outside.

What PyTorch's own code must know for that is patched while such an operator or its backward pass
runs, not while a region is open: on our dispatch keys the operators have a kernel that sees to it,
which nobody outside of regions comes by.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, TypeVar

import torch

from unamp._function_types import Function
from unamp.adapter.patching import Patches
from unamp.adapter.replacing import AttributePatch, as_replacement
from unamp.adapter.wrapping import derived_class
from unamp.regions import Region, innermost_region
from unamp_torch.backward import suspended
from unamp_torch.state import KERNEL_KEYS, KernelKey, thread

R = TypeVar("R")

#: The modules of the operators whose backward passes make such graphs, each with what it calls its
#: `torch.autograd.Function`. The names of a module's operators begin with its own.
_MAKING_GRAPHS = (
    ("torch._higher_order_ops.associative_scan", "AssociativeScanAutogradOp"),
    ("torch._higher_order_ops.cond", "CondAutogradOp"),
    ("torch._higher_order_ops.map", "MapAutogradOp"),
    ("torch._higher_order_ops.while_loop", "WhileLoopAutogradOp"),
)


def _patches_of(module: str, function: str) -> Patches | None:
    """Return the patches of a module; None where PyTorch lacks it, or has other names in it."""
    home = importlib.import_module(module) if importlib.util.find_spec(module) else None
    if not (hasattr(home, function) and hasattr(home, "materialize_as_graph")):
        return None
    made: Patches = Patches(
        lambda: (
            AttributePatch(home, function, functools.partial(_remembering, made)),
            AttributePatch(home, "materialize_as_graph", _graphing),
        )
    )
    return made


_PATCHES = {module: _patches_of(module, function) for module, function in _MAKING_GRAPHS}


def let_pass(key: KernelKey) -> None:
    """Have operators that take functions go on from one of our keys to the next.

    That is for good, as the kernels there are. Where this version of PyTorch keeps them elsewhere
    nothing is done, and it raises for them in a region.
    """
    known: Mapping[str, Any] = getattr(torch._ops, "_higher_order_ops", {})
    of_later_ones: list[torch._C.DispatchKey] = getattr(
        torch._ops, "_HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS", []
    )
    of_later_ones.append(key.key)
    for name, operator in tuple(known.items()):
        home = next(
            (module for module in _PATCHES if name.startswith(module.rpartition(".")[2])), None
        )
        if home is None:
            operator.fallthrough(key.key)
        elif (patches := _PATCHES[home]) is not None:
            operator.py_impl(key.key)(_patched(operator, patches))
        else:
            # Its backward pass would run in another precision in silence, so the operator goes
            # nowhere: in a region PyTorch raises that it finds no kernel for it.
            continue
        _leave_alone_between(operator)


def _patched(operator: Any, patches: Patches) -> Function:
    """Return an operator's kernel for our keys: the next one, with the patches."""

    def kernel(*args: Any, **kwargs: Any) -> object:
        keys = operator.non_fallthrough_keys
        for each in KERNEL_KEYS:
            keys = keys.remove(each.key)
        with patches.patched():
            return operator.dispatch(
                torch._ops._compute_keyset(args, kwargs, keys).highestPriorityTypeId(),
                *args,
                **kwargs,
            )

    return kernel


def _leave_alone_between(operator: Any) -> None:
    """Have rules reach into an operator's functions only.

    They do not reach where it stacks or splits what these take and return.
    """
    kernels = getattr(operator, "py_kernels", {})
    kernel = kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
    if kernel is not None and not hasattr(kernel, "of_unamp"):
        kernels[torch._C.DispatchKey.CompositeExplicitAutograd] = _between(kernel)


def _inside(region: Region, function: Callable[..., R]) -> Callable[..., R]:
    """Return a function that runs another in a region.

    It does not ask whether a graph is made: what runs here is not recorded.
    """

    def inside(*args: Any, **kwargs: Any) -> R:
        with region:
            return function(*args, **kwargs)

    return inside


def _between(kernel: Callable[..., R]) -> Callable[..., R]:
    def outside(*args: Any, **kwargs: Any) -> R:
        plan, region = thread.plan, innermost_region()
        if plan is None or plan.delegated or region is None or thread.sink is not None:
            # a trace sees all that runs
            return kernel(*args, **kwargs)
        with suspended():
            return kernel(
                *(_inside(region, each) if callable(each) else each for each in args), **kwargs
            )

    outside.of_unamp = True  # type: ignore[attr-defined]
    return outside


@functools.cache
def _remembering(patches: Patches, original: type[torch.autograd.Function]) -> Any:
    """Wrap an operator's `torch.autograd.Function`.

    Its backward pass knows the region of its forward, and has the patches.
    """

    def forward(ctx: Any, *args: Any) -> object:
        plan = thread.plan
        ctx.unamp_region = None if plan is None else innermost_region()
        return original.forward(ctx, *args)

    def backward(ctx: Any, *gradients: torch.Tensor | None) -> object:
        if ctx.unamp_region is None:
            return original.backward(ctx, *gradients)
        outer, thread.forward_region = thread.forward_region, ctx.unamp_region
        try:
            # Open, for the patches, and out of force.
            with ctx.unamp_region, suspended(), patches.patched():
                return original.backward(ctx, *gradients)
        finally:
            thread.forward_region = outer

    return derived_class(
        original, {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    )


@functools.cache
@as_replacement
def _graphing(
    original: Callable[..., torch.fx.GraphModule], /, *args: Any, **kwargs: Any
) -> torch.fx.GraphModule:
    """Wrap the function that makes the graph.

    In such a backward pass it does so in the region of the forward.
    """
    with thread.forward_region or nullcontext():
        return original(*args, **kwargs)
