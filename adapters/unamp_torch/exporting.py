"""Regions and `torch.export`.

Export records operators above autocast: the exported program would lose a policy. While an export runs in a region, each
operator of the vocabulary therefore gets a handler on the key where export records, which carries the rule out first, so
that its casts are recorded too.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from unamp.vocabulary import vocabulary
from unamp_torch import kernels, plans
from unamp_torch.kernels import Operator
from unamp_torch.state import thread

__all__ = ["acquire", "recording", "release"]

_PRE_DISPATCH = torch._C.DispatchKey.PreDispatch

_lock = threading.Lock()
_users = 0
_replaced: list[tuple[dict[Any, Any], Any]] = []


def recording(original: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.export`'s entry, for calls inside a region."""

    @functools.wraps(original)
    def export(*args: Any, **kwargs: Any) -> Any:
        if thread.plan is None:
            return original(*args, **kwargs)
        acquire()
        try:
            return original(*args, **kwargs)
        finally:
            release()

    return export


def acquire() -> None:
    """An export begins in a region, or a region opens in an export."""
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            for op in vocabulary():
                for operator in kernels.operators(op):
                    handlers = operator.overload._dispatch_cache
                    _replaced.append((handlers, handlers.get(_PRE_DISPATCH)))
                    handlers[_PRE_DISPATCH] = _handler(operator)


def release() -> None:
    """It ends."""
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            while _replaced:
                handlers, before = _replaced.pop()
                if before is None:
                    del handlers[_PRE_DISPATCH]
                else:
                    handlers[_PRE_DISPATCH] = before


def _handler(operator: Operator) -> Callable[..., Any]:
    recorded = operator.calling(lambda *args, **kwargs: operator.overload._get_dispatch(_PRE_DISPATCH)(*args, **kwargs))

    def handle(*args: Any, **kwargs: Any) -> Any:
        plan = thread.plan
        device = operator.eligible.device(args, kwargs)
        if plan is None or plan.delegated or not plan.autocast or device not in plan.devices:
            return recorded.call(*args, **kwargs)
        return plans.explicit_action(plan.policy, operator, device)(recorded, args, kwargs, plan.low)

    return handle
