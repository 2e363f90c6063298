"""What this thread computes under, and the dispatcher switches that say so.

unamp's kernels are registered on functionality keys of PyTorch's dispatcher, the *slots*. The dispatcher sends an operation
there only in threads that include the slot, and only if it has a kernel on it: everywhere else, and for every other
operation, it costs nothing.

Why these keys: they must lie above the Autocast keys, so that a rule of ours is carried out before the native one, and above
functorch's, because a kernel written in Python below them cannot be called with a Python scalar inside `torch.func`
("Cannot access data pointer"). Nothing in PyTorch uses them: c10 reserves them for tests of that mechanism, which cannot run
in the same process as user code.

There is more than one because kernels are registered for good. `FEW` is for policies that differ from native autocast in some
operations, `MANY` for those that take nearly all of them over (O2, O3, OD): once one of those has been in force, operations
that a policy of the first kind leaves alone would otherwise pass through kernels with nothing to do. `TRACED` is for
`unamp.trace`, whose kernels are always in Python; where the others are, too, it is the same as `MANY`. The compiled ones on
`MANY` lie below functorch's keys, as native autocast's do, on a key that c10 reserves for a mechanism outside of PyTorch.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from unamp_torch.compiled import library

if TYPE_CHECKING:
    from unamp_torch.plans import Plan

__all__ = [
    "CPU",
    "CUDA",
    "DTYPES",
    "FEW",
    "MANY",
    "NATIVE_KEYS",
    "SLOTS",
    "TRACED",
    "Slot",
    "excluded",
    "listen",
    "lock",
    "set_excluded",
    "set_included",
    "thread",
]


class Slot(NamedTuple):
    """A dispatch key for kernels of ours, by its name and as PyTorch's object."""

    name: str
    key: Any


FEW, TRACED, _BELOW_FUNCTORCH = (
    Slot(name, torch._C._parse_dispatch_key(name))
    for name in ("TESTING_ONLY_GenericMode", "TESTING_ONLY_GenericWrapper", "DeferredInit")
)
MANY = TRACED if library is None else _BELOW_FUNCTORCH
SLOTS = tuple(dict.fromkeys((FEW, MANY, TRACED)))

CPU, CUDA = "cpu", "cuda"

#: The dispatch keys of the native autocast kernels.
NATIVE_KEYS = {CPU: torch._C.DispatchKey.AutocastCPU, CUDA: torch._C.DispatchKey.AutocastCUDA}

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}

excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
set_excluded = torch._C._dispatch_tls_set_dispatch_key_excluded
set_included = torch._C._dispatch_tls_set_dispatch_key_included


class Thread(threading.local):
    """One thread's state.

    Attributes:
        plan: what the innermost region made of its policy; None outside regions and while one is suspended.
        weights: casts of float32 parameters made in the outermost region, by the parameter's id, each with the parameter
            itself (so that the id stays its own) and the version that was cast. None where nothing is to be kept.
        sink: where `unamp.trace` wants operations reported.
        emulated: whether the operation that is being reported was emulated.
        transforms: the levels of `torch.vmap` that were put on in a region, each with the plan around it.
    """

    plan: Plan | None = None
    weights: dict[int, tuple[torch.Tensor, int, torch.Tensor]] | None = None
    sink: Any = None
    emulated: bool = False
    transforms: Mapping[int, Plan] = MappingProxyType({})


thread = Thread()


def listen(plan: Plan | None) -> None:
    """Include the slot that a plan needs in this thread, and no other; while `unamp.trace` watches, its own."""
    if thread.sink is not None:
        wanted: Slot | None = TRACED
    else:
        wanted = plan.slot if plan is not None and plan.intercepts else None
    for slot in SLOTS:
        set_included(slot.key, slot is wanted)
    if library is not None:
        library.set_watched(thread.sink is not None)


def lock() -> threading.RLock:
    """A lock that a forked process finds free: nobody but the forking thread holds it at that moment."""
    made = threading.RLock()
    os.register_at_fork(before=made.acquire, after_in_parent=made.release, after_in_child=made.release)
    return made
