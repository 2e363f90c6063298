"""What this thread computes under, and MindSpore's types that everything here asks about."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import mindspore
from mindspore import Parameter, Tensor

if TYPE_CHECKING:
    from unamp_mindspore.plans import Plan

__all__ = ["DTYPES", "FLOAT32", "LOW", "NAMES", "Parameter", "Tensor", "on_cpu", "thread"]

#: MindSpore's dtype objects are singletons; `is` costs a tenth of `==`.
FLOAT32 = mindspore.float32
LOW = (mindspore.float16, mindspore.bfloat16)
DTYPES = {"float16": mindspore.float16, "bfloat16": mindspore.bfloat16, "float32": FLOAT32}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def on_cpu() -> bool:
    """Whether MindSpore computes on the CPU: the device is one for the whole process."""
    return mindspore.get_context("device_target") == "CPU"


class Thread(threading.local):
    """One thread's state.

    Attributes:
        plan: what the innermost region made of its policy; None outside regions and while one is suspended.
        weights: casts of float32 parameters made in the outermost region, by the parameter's id, each with the parameter
            itself (so that the id stays its own), the version that was cast, and the low dtype. None where nothing is kept.
        sink: where `unamp.trace` wants operations reported.
    """

    plan: Plan | None = None
    weights: dict[int, tuple[Any, int, Any, Any]] | None = None
    sink: Any = None


thread = Thread()
