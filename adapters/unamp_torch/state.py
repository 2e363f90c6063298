"""What this thread computes under, and the dispatcher switches that say so.

unamp's kernels are registered on one functionality key of PyTorch's dispatcher, the *slot*. The dispatcher sends an
operation there only in threads that include the slot, and only for the operations that have a kernel on it: everywhere
else, and for every other operation, it costs nothing.

Why this key: it must lie above the Autocast keys, so that a rule of ours is carried out before the native one, and above
functorch's, because a kernel written in Python below them cannot be called with a Python scalar inside `torch.func`
("Cannot access data pointer"). Among the keys up there it is the only mode key that nothing in PyTorch uses: its one
mention in c10 reserves it for tests of that mechanism, which cannot run in the same process as user code.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from unamp_torch.plans import Plan

__all__ = [
    "CPU",
    "CUDA",
    "DTYPES",
    "NATIVE_KEYS",
    "SLOT",
    "SLOT_NAME",
    "excluded",
    "lock",
    "set_excluded",
    "set_included",
    "thread",
]

SLOT_NAME = "TESTING_ONLY_GenericMode"
SLOT = torch._C._parse_dispatch_key(SLOT_NAME)

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
    """

    plan: Plan | None = None
    weights: dict[int, tuple[torch.Tensor, int, torch.Tensor]] | None = None
    sink: Any = None
    emulated: bool = False


thread = Thread()


def lock() -> threading.RLock:
    """A lock that a forked process finds free: nobody but the forking thread holds it at that moment."""
    made = threading.RLock()
    os.register_at_fork(before=made.acquire, after_in_parent=made.release, after_in_child=made.release)
    return made
