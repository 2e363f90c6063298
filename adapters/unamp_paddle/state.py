"""The state of a thread, and the types, dtypes and devices of Paddle that all modules ask about."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import paddle
from paddle.base import core
from paddle.base.framework import EagerParamBase

from unamp._function_types import Keywords
from unamp.adapter.performing import CallPlan
from unamp.adapter.state import Dtypes, ThreadState
from unamp.policy import Rule

Tensor = paddle.Tensor
Parameter = EagerParamBase
#: A tensor of a program, while `paddle.jit.to_static` traces or a user builds one.
Value = paddle.pir.Value
#: A tensor or a program's value: a cast of one is of the same kind.
TensorT = TypeVar("TensorT", paddle.Tensor, paddle.pir.Value)

#: Whether this Paddle can compute on the CPU alone: built for no other device, and without plugins.
CPU_ONLY = not (
    core.is_compiled_with_cuda()
    or core.is_compiled_with_xpu()
    or paddle.device.get_all_custom_device_type()
)

#: Paddle's dtype objects are singletons: compare them with `is`, which costs a tenth of `in`.
DTYPES = Dtypes(
    "paddle", {"float16": paddle.float16, "bfloat16": paddle.bfloat16, "float32": paddle.float32}
)
FLOAT32 = paddle.float32
LOW = (paddle.float16, paddle.bfloat16)
NAMES = {dtype: name for name, dtype in DTYPES.items()}

#: The C++ function behind `paddle.is_grad_enabled`, which saves a call in Python.
is_grad_enabled = core._has_grad

_SAME = {dtype: dtype for dtype in NAMES}
#: The classes whose `dtype` is a new object at each access, so that `is` fails (see `dtype_of`):
#: before Paddle 3.3, all of them.
FORGETFUL = (
    (Value,) if paddle.zeros([0], "float32").dtype is FLOAT32 else (Value, Tensor, Parameter)
)


def dtype_of(tensor: paddle.Tensor | paddle.pir.Value) -> paddle.dtype:
    """Return a tensor's dtype, as the singleton that it is."""
    dtype = tensor.dtype
    return _SAME.get(dtype, dtype) if isinstance(tensor, FORGETFUL) else dtype


def on_gpu(args: Iterable[Any]) -> bool:
    """Return whether the first tensor among arguments is on a GPU."""
    for value in args:
        if type(value) in (list, tuple) and value:
            value = value[0]
        if isinstance(value, Tensor):
            return bool(value.place.is_gpu_place())
        if isinstance(value, Value):
            return expects_gpu()
    return False


def expects_gpu() -> bool:
    """Return whether new tensors are made on a GPU."""
    return bool(paddle.framework._current_expected_place().is_gpu_place())


class Plan(CallPlan, Protocol):
    """A policy made ready for Paddle, as the code that carries out a call sees it."""

    @property
    def changes_float32(self) -> Container[str]:
        """Paddle's names of operations whose calls must be looked at even if all is float32."""

    @property
    def natively(self) -> bool:
        """True where Paddle's own AMP carries out the rules of forward functions on a GPU."""

    @property
    def layer_rule(self) -> Rule | None:
        """The rule for all operations inside a layer that is one operation; None elsewhere."""

    def carry_out(self, operator: Any, args: Sequence[object], kwargs: Keywords) -> object:
        """Call an operation under its rule."""

    def inside(self, rule: Rule) -> Plan:
        """Return the plan for the operations inside a composite with this rule."""


thread: ThreadState[Plan] = ThreadState()
