"""The state of a thread, and the types of MindSpore's that everything here asks about."""

from __future__ import annotations

from collections.abc import Container, Mapping
from operator import attrgetter
from typing import Any, Protocol

import mindspore
from mindspore import Parameter, Tensor, context
from mindspore._c_expression import TensorPy

from unamp._function_types import Args, Keywords
from unamp.adapter.performing import CallPlan
from unamp.adapter.state import Dtypes, ThreadState
from unamp.policy import Rule

__all__ = [
    "DEVICE", "DTYPES", "FLOAT32", "LOW", "NAMES", "Parameter", "Plan", "Tensor", "device",
    "dtype_of", "on_cpu", "setting", "thread",
]  # fmt: skip

#: The class of MindSpore's dtypes.
Dtype = mindspore.Type

#: MindSpore's dtype objects are singletons; `is` costs a tenth of `==`.
DTYPES = Dtypes(
    "mindspore",
    {"float16": mindspore.float16, "bfloat16": mindspore.bfloat16, "float32": mindspore.float32},
)
FLOAT32 = mindspore.float32
LOW = (mindspore.float16, mindspore.bfloat16)
NAMES = {dtype: name for name, dtype in DTYPES.items()}

#: A tensor's dtype, without the property in Python that `Tensor.dtype` is.
dtype_of = attrgetter("_dtype" if hasattr(TensorPy, "_dtype") else "dtype")

#: Asks for one of MindSpore's settings, in C++: a twentieth of what `mindspore.get_context` takes.
setting = context._context()._context_handle.get_param
DEVICE = context.ms_ctx_param.device_target


def on_cpu() -> bool:
    """Return whether MindSpore computes on the CPU: the device is one for the whole process."""
    return bool(setting(DEVICE) == "CPU")


def device() -> str:
    """Return the device on which this process computes, ``"cpu"`` or ``"gpu"``."""
    return "cpu" if on_cpu() else "gpu"


class Plan(CallPlan, Protocol):
    """A policy made ready for MindSpore, as what carries out a call sees it."""

    @property
    def changes_float32(self) -> Container[str]:
        """MindSpore's names of operations whose calls in float32 alone must be looked at."""

    @property
    def inside(self) -> Plan:
        """The plan for what an operation is made of that no rule changes."""

    @property
    def quick(self) -> Mapping[Any, Rule]:
        """The rules that `calls.carry_out` itself carries out for most calls, by the operation."""

    def follows_parts(self, op: str) -> bool:
        """Return whether an operation's parts follow their own rules."""

    def carry_out(self, operator: Any, args: Args, kwargs: Keywords) -> object:
        """Call an operation under its rule."""


class Thread(ThreadState[Plan]):
    """One thread's state.

    Attributes:
        captures: how many functions this thread runs, one in another, whose bytecode MindSpore
            captures.
        recorded: whether a region closed while MindSpore recorded for gradients, whose backward
            pass is still to come.
    """

    captures: int = 0
    recorded: bool = False


thread = Thread()
