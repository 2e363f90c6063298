"""Regions and `torch.export`, `make_fx`, `torch.jit.trace` and `torch.onnx.export`.

Export, and `make_fx` with `pre_dispatch`, record operators above autocast: the program would lose
the policy. So while one of them runs in a region, each operator of the vocabulary has a handler on
the key where they record. The handler carries the rule out first, so that its casts are recorded,
too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.compiler import is_exporting

from unamp._function_types import Function
from unamp.adapter.patching import Patches
from unamp.adapter.replacing import AttributePatch, as_replacement
from unamp.regions import Region, innermost_region
from unamp.vocabulary import vocabulary
from unamp_torch import plans
from unamp_torch.backward import suspended
from unamp_torch.calls import below_rules
from unamp_torch.facts import facts, follows_parts
from unamp_torch.listing import Operator, operators
from unamp_torch.state import included, thread

if TYPE_CHECKING:
    from torch.fx.proxy import TracerBase

R = TypeVar("R")

#: The dispatch key that is included in a thread while operators are recorded above autocast.
PRE_DISPATCH = torch._C.DispatchKey.PreDispatch


def records_above() -> bool:
    """Return whether operators are recorded above autocast in this thread now."""
    return is_exporting() or included(PRE_DISPATCH)


@as_replacement
def recording(
    original: Callable[..., Function],
    f: Function,
    tensors: tuple[object, ...],
    tracer: TracerBase,
    pre_dispatch: bool,
) -> Function:
    """Wrap the function that prepares a function for `make_fx`.

    Where `make_fx` records above autocast in a region, the function runs with the handlers.
    """
    recorded = original(f, tensors, tracer, pre_dispatch)
    if not pre_dispatch or thread.plan is None:
        return recorded

    @functools.wraps(recorded)
    def in_region(*args: Any, **kwargs: Any) -> object:
        with _patches.patched():
            return recorded(*args, **kwargs)

    return in_region


@as_replacement
def exporting(original: Callable[..., R], /, mod: torch.nn.Module, *args: Any, **kwargs: Any) -> R:
    """Wrap `torch.export`'s entry: a region around it is opened in the module's forward."""
    region = innermost_region()
    if region is None or thread.plan is None:
        return original(mod, *args, **kwargs)
    with _opened_in_forward(mod, region):
        return original(mod, *args, **kwargs)


@as_replacement
def to_onnx(original: Callable[..., R], /, model: Any, *args: Any, **kwargs: Any) -> R:
    """Wrap `torch.onnx.export`: a region around it is opened in the module's forward alone.

    Passes that rewrite the program afterwards run its operators again, which would follow the rules
    anew.
    """
    region, plan = innermost_region(), thread.plan
    usual = signature(original).parameters["dynamo"].default
    if region is None or plan is None or plan.delegated or not kwargs.get("dynamo", usual):
        return original(model, *args, **kwargs)
    opened = isinstance(model, torch.nn.Module) and not isinstance(model, torch.jit.ScriptModule)
    with _opened_in_forward(model, region) if opened else nullcontext(), suspended():
        return original(model, *args, **kwargs)


@contextmanager
def _opened_in_forward(module: torch.nn.Module, region: Region) -> Iterator[None]:
    patch = AttributePatch(module, "forward", region)
    patch.apply()
    try:
        yield
    finally:
        patch.undo()


@as_replacement
def tracing(original: Callable[..., R], /, *args: Any, **kwargs: Any) -> R:
    """Wrap `torch.jit.trace`'s entry: inside a region no cast is kept meanwhile.

    A kept cast would be traced as a constant that requires grad, which the tracer refuses.
    """
    if thread.plan is None:
        return original(*args, **kwargs)
    kept, thread.weights = thread.weights, None
    caching = torch.is_autocast_cache_enabled()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(False)
    try:
        return original(*args, **kwargs)
    finally:
        torch.set_autocast_cache_enabled(caching)
        thread.weights = kept


class _Handlers(dict[torch._C.DispatchKey, torch._C.DispatchKey | Function]):
    """An operator's handlers, by dispatch key, with ours among them.

    PyTorch removes single handlers or all of them now and then; ours stays.
    """

    def __init__(
        self, handlers: dict[torch._C.DispatchKey, torch._C.DispatchKey | Function], ours: Function
    ) -> None:
        super().__init__(handlers)
        self.ours = self[PRE_DISPATCH] = ours

    def clear(self) -> None:
        super().clear()
        self[PRE_DISPATCH] = self.ours

    def pop(self, key: torch._C.DispatchKey, default: Any = None) -> Any:
        return default if key == PRE_DISPATCH else super().pop(key, default)


@functools.cache
def _handler(operator: Operator) -> Function:
    """Return the function that records an operator with the casts of its rule."""

    def record(*args: Any, **kwargs: Any) -> object:
        # PyTorch makes its own handler only where none is cached: ours is taken out meanwhile.
        handlers = operator.overload._dispatch_cache
        dict.pop(handlers, PRE_DISPATCH, None)
        try:
            original: Any = operator.overload._get_dispatch(PRE_DISPATCH)
        finally:
            handlers[PRE_DISPATCH] = handle
        return original(*args, **kwargs)

    # A recorded operator is also computed on fake tensors. The rule is not applied again there: an
    # emulated operator, which computes in float32, would be recorded as one with a low result, and
    # its result would never be rounded.
    recorded = operator.calling(lambda *args, **kwargs: below_rules(record, args, kwargs))

    def handle(*args: Any, **kwargs: Any) -> object:
        plan = thread.plan
        device = operator.eligible.device(args, kwargs)
        if plan is None or not plan.autocast or device not in plan.devices:
            return record(*args, **kwargs)
        # PyTorch's own autocast is lost in an export, too: where the policy is delegated to it, its
        # lists are carried out here.
        policy = plan.policy.delegated("torch", device)
        if policy is None:
            return record(*args, **kwargs)
        if plan.delegated:
            policy = policy.replace(level="O1")  # PyTorch's own AMP has lists, and no levels
        left = plans.is_left_to_pytorch(policy, operator, device)
        if follows_parts(policy, operator.op) or (
            left and operator.composite and operator.op in facts().made_of
        ):
            return operator.overload.decompose(*args, **kwargs)
        if left or (plan.delegated and not policy.reason(operator.op).origin.startswith("preset ")):
            return record(*args, **kwargs)
        return plans.action_for(policy, operator, device)(
            recorded, args, kwargs, plan.low_on(device)
        )

    return handle


def _handlers() -> list[AttributePatch]:
    return [
        AttributePatch(
            operator.overload,
            "_dispatch_cache",
            functools.partial(_Handlers, ours=_handler(operator)),
        )
        for op in vocabulary()
        for operator in operators(op)
    ]


_patches = Patches(_handlers)

acquire, release = _patches.acquire, _patches.release
