"""Regions and the operators that take functions: `torch.cond`, `torch.while_loop` and the like.

PyTorch keeps these operators in Python. They pass our dispatch keys (`let_pass`), and rules reach
into the functions when these are called. Their backward passes make a graph of a function and its
gradient, for which they run the function again. That must be under the region of the forward, but
nothing else in a backward pass may be: so the graph is made in the region, and run outside.

PyTorch's own code is patched for that while such an operator or its backward pass runs, not while a
region is open: the operators have a kernel on our dispatch keys that applies the patches, and that
nobody meets outside of regions.
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
from unamp.regions import innermost_region
from unamp_torch.backward import inside, suspended
from unamp_torch.state import KERNEL_KEYS, KernelKey, thread

R = TypeVar("R")

#: The modules of the operators whose backward passes make such graphs, each with the name of its
#: `torch.autograd.Function`. The names of a module's operators begin with the module's name.
_MAKING_GRAPHS = (
    ("torch._higher_order_ops.associative_scan", "AssociativeScanAutogradOp"),
    ("torch._higher_order_ops.cond", "CondAutogradOp"),
    ("torch._higher_order_ops.map", "MapAutogradOp"),
    ("torch._higher_order_ops.while_loop", "WhileLoopAutogradOp"),
)


def _patches_of(module: str, function: str) -> Patches | None:
    """Return the patches of a module; None where PyTorch lacks the module, or the names in it."""
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
    """Let operators that take functions pass one of our keys.

    That is for good, as kernels on the key are. Where this version of PyTorch keeps the operators
    elsewhere nothing is done, and PyTorch raises for them in a region.
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
            # Its backward pass would silently run in another precision, so the operator may not
            # pass: in a region PyTorch raises that it finds no kernel for it.
            continue
        _leave_alone_between(operator)


def _patched(operator: Any, patches: Patches) -> Function:
    """Return an operator's kernel for our keys: the patches, around the kernel on the next key."""

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
    """Keep rules inside an operator's functions.

    They must not reach the operations by which it stacks or splits inputs and results.
    """
    kernels = getattr(operator, "py_kernels", {})
    kernel = kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
    if kernel is not None and not hasattr(kernel, "of_unamp"):
        kernels[torch._C.DispatchKey.CompositeExplicitAutograd] = _between(kernel)


def _between(kernel: Callable[..., R]) -> Callable[..., R]:
    def outside(*args: Any, **kwargs: Any) -> R:
        plan, region = thread.plan, innermost_region()
        if plan is None or plan.delegated or region is None or thread.sink is not None:
            # a trace reports every operation that runs
            return kernel(*args, **kwargs)
        with suspended():
            return kernel(
                *(inside(region, each) if callable(each) else each for each in args), **kwargs
            )

    outside.of_unamp = True  # type: ignore[attr-defined]
    return outside


@functools.cache
def _remembering(patches: Patches, original: type[torch.autograd.Function]) -> Any:
    """Wrap an operator's `torch.autograd.Function`.

    Its backward pass remembers the region of its forward, and applies the patches.
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
            # The region is opened for its patches of PyTorch, and its policy taken out of force.
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
    """Wrap the function that makes the graph, to make it in the region of the forward."""
    with thread.forward_region or nullcontext():
        return original(*args, **kwargs)
