"""What this thread computes under, and Paddle's types that everything here asks about."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import paddle
from paddle.base import core
from paddle.base.framework import EagerParamBase

if TYPE_CHECKING:
    from unamp_paddle.plans import Plan

__all__ = [
    "DTYPES", "FLOAT32", "FORGETFUL", "LOW", "NAMES", "Parameter", "Tensor", "Value", "dtype_of", "is_grad_enabled", "thread",
]  # fmt: skip

Tensor = paddle.Tensor
Parameter = EagerParamBase
#: What stands for a tensor while `paddle.jit.to_static` traces.
Value = paddle.pir.Value

#: Paddle's dtype objects are singletons; `is` costs a tenth of `in`.
FLOAT32 = paddle.float32
LOW = (paddle.float16, paddle.bfloat16)
DTYPES = {"float16": paddle.float16, "bfloat16": paddle.bfloat16, "float32": paddle.float32}
NAMES = {dtype: name for name, dtype in DTYPES.items()}

#: What the public function asks, without a call of Python.
is_grad_enabled = getattr(core, "_has_grad", paddle.is_grad_enabled)

_SAME = {dtype: dtype for dtype in NAMES}
#: Classes of tensors that make a new object each time that they are asked for their dtype: before Paddle 3.3 all do.
FORGETFUL = (Value,) if paddle.zeros([0], "float32").dtype is FLOAT32 else (Value, Tensor, Parameter)


def dtype_of(tensor: Any) -> Any:
    """A tensor's dtype, as the singleton that it is."""
    dtype = tensor.dtype
    return _SAME.get(dtype, dtype) if isinstance(tensor, FORGETFUL) else dtype


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
