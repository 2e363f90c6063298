"""The state of a thread, and MindSpore's types, dtypes and device that all modules ask about."""

from __future__ import annotations

from collections.abc import Container, Mapping
from operator import attrgetter
from typing import Any, Protocol

import mindspore
from mindspore import context
from mindspore._c_expression import TensorPy

from unamp._function_types import Args, Keywords
from unamp.adapter.performing import CallPlan
from unamp.adapter.state import Dtypes, ThreadState
from unamp.policy import Rule

Tensor = mindspore.Tensor
Parameter = mindspore.Parameter
#: The class of MindSpore's dtypes.
Dtype = mindspore.Type

#: MindSpore's dtype objects are singletons: compare them with `is`, which costs a tenth of `==`.
DTYPES = Dtypes(
    "mindspore",
    {"float16": mindspore.float16, "bfloat16": mindspore.bfloat16, "float32": mindspore.float32},
)
FLOAT32 = mindspore.float32
LOW = (mindspore.float16, mindspore.bfloat16)
NAMES = {dtype: name for name, dtype in DTYPES.items()}

#: Returns a tensor's dtype, without a call of `Tensor.dtype`, which is a property in Python.
dtype_of = attrgetter("_dtype" if hasattr(TensorPy, "_dtype") else "dtype")

#: Returns one of MindSpore's settings from C++, in a twentieth of `mindspore.get_context`'s time.
setting = context._context()._context_handle.get_param
DEVICE = context.ms_ctx_param.device_target


def on_cpu() -> bool:
    """Return whether MindSpore computes on the CPU: the device is one for the whole process."""
    return bool(setting(DEVICE) == "CPU")


def device() -> str:
    """Return the device on which this process computes, ``"cpu"`` or ``"gpu"``."""
    return "cpu" if on_cpu() else "gpu"


class Plan(CallPlan, Protocol):
    """A policy made ready for MindSpore, as the code that carries out a call sees it."""

    @property
    def changes_float32(self) -> Container[str]:
        """MindSpore's names of operations whose calls must be looked at even if all is float32."""

    @property
    def inside(self) -> Plan:
        """The plan for the operations inside an operation that no rule changes."""

    @property
    def quick(self) -> Mapping[Any, Rule]:
        """The rules of the operations that `calls.carry_out` may do without the performer."""

    def follows_parts(self, op: str) -> bool:
        """Return whether an operation's parts follow their own rules."""

    def carry_out(self, operator: Any, args: Args, kwargs: Keywords) -> object:
        """Call an operation under its rule."""


class Thread(ThreadState[Plan]):
    """One thread's state.

    Attributes:
        captures: the number of functions, one inside another, that MindSpore captures the bytecode
            of in this thread.
        recorded: whether a region has closed while MindSpore was recording for gradients, so that
            the backward pass of its operations is still to come.
    """

    captures: int = 0
    recorded: bool = False


thread = Thread()
