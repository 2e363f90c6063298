"""Regions and `torch.export`.

Export records operators above autocast: the exported program would lose a policy. While an export runs in a region, each
operator of the vocabulary therefore gets a handler on the key where export records, which carries the rule out first, so
that its casts are recorded too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from unamp.regions import innermost_region
from unamp.vocabulary import vocabulary
from unamp_torch import plans
from unamp_torch.listing import Operator, operators
from unamp_torch.state import CPU, lock, thread

__all__ = ["acquire", "recording", "release"]

_PRE_DISPATCH = torch._C.DispatchKey.PreDispatch

_lock = lock()
_users = 0
_replaced: list[tuple[Any, dict[Any, Any]]] = []


class _Handlers(dict[Any, Any]):
    """An operator's handlers, by dispatch key, with ours among them; PyTorch takes single ones or all out now and then."""

    def __init__(self, handlers: dict[Any, Any], ours: Callable[..., Any]) -> None:
        super().__init__(handlers)
        self.ours = self[_PRE_DISPATCH] = ours

    def clear(self) -> None:
        super().clear()
        self[_PRE_DISPATCH] = self.ours

    def pop(self, key: Any, default: Any = None) -> Any:
        return default if key == _PRE_DISPATCH else super().pop(key, default)


def recording(original: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.export`'s entry, for calls inside a region: the region is opened in the module's forward."""

    @functools.wraps(original)
    def export(mod: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        region = innermost_region()
        if region is None or thread.plan is None:
            return original(mod, *args, **kwargs)
        own = mod.__dict__.get("forward")
        mod.forward = region(mod.forward)
        try:
            return original(mod, *args, **kwargs)
        finally:
            if own is None:
                del mod.forward
            else:
                mod.forward = own

    return export


def acquire() -> None:
    """A region opens in an export."""
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            for op in vocabulary():
                for operator in operators(op):
                    overload = operator.overload
                    _replaced.append((overload, overload._dispatch_cache))
                    overload._dispatch_cache = _Handlers(overload._dispatch_cache, _handler(operator))


def release() -> None:
    """It closes."""
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            while _replaced:
                overload, handlers = _replaced.pop()
                overload._dispatch_cache = handlers


def _handler(operator: Operator) -> Callable[..., Any]:
    def record(*args: Any, **kwargs: Any) -> Any:
        # PyTorch makes its own handler anew for each call, and only where none is cached.
        handlers = operator.overload._dispatch_cache
        dict.pop(handlers, _PRE_DISPATCH, None)
        try:
            original = operator.overload._get_dispatch(_PRE_DISPATCH)
        finally:
            handlers[_PRE_DISPATCH] = handle
        return original(*args, **kwargs)

    recorded = operator.calling(record)

    def handle(*args: Any, **kwargs: Any) -> Any:
        plan = thread.plan
        device = operator.eligible.device(args, kwargs)
        if plan is None or not plan.autocast or device not in plan.devices:
            return recorded.call(*args, **kwargs)
        # PyTorch's own autocast is lost in an export, too: where a region is handed to it, its lists are carried out here.
        policy = plan.policy.delegated("torch", "cpu" if device == CPU else "gpu")
        if policy is None:
            return recorded.call(*args, **kwargs)
        if plans.only_chooses(policy, operator.op):
            return operator.overload.decompose(*args, **kwargs)
        return plans.explicit_action(policy, operator, device)(recorded, args, kwargs, plan.low_on(device))

    return handle
