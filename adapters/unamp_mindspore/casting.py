"""Casts of tensors, one by one and in argument lists.

No cast is cached, not even a parameter's: `ops.assign`, `assign_value`, an index and an optimizer
change a parameter in place without a new version, so an outdated cast could not be recognised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mindspore import context, ops
from mindspore._c_expression import TensorPy, _empty_like_instance
from mindspore.common._grad_function import _Function

from unamp.adapter.arguments import mapped, nesting
from unamp_mindspore.moved import api
from unamp_mindspore.state import FLOAT32, LOW, Dtype, Parameter, Tensor, dtype_of, setting

# The originals, held here: a region replaces the names.
_converted = ops.Cast().__call__
_filled = vars(TensorPy)["copy_"]
_reshaped = vars(TensorPy)["reshape"]
_FLOAT16, _BFLOAT16 = LOW

#: Returns whether MindSpore is recording operations, for gradients.
recording = api._pynative_executor._executor.requires_grad

_SYNCHRONOUS = context.ms_ctx_param.pynative_synchronize


def recast(tensor: Tensor, *dtypes: Dtype) -> Tensor:
    """Return a tensor cast to one dtype after another; its gradient is cast the same way back.

    On a CPU the operation Cast takes half a millisecond more than a copy into a tensor of the other
    dtype. But a copy has no gradient, and a gradient in Python (`_Copy`) makes MindSpore's threads
    wait for each other. So `_Copy` is used only where each call waits for its result anyway.
    """
    if recording():
        if setting(_SYNCHRONOUS):
            if isinstance(tensor, Parameter):
                # The gradient of the parameter itself would get the dtype that it was made with.
                tensor = _reshaped(tensor, tensor.shape)
            return _Copy.apply(tensor, *dtypes)
        for dtype in dtypes:
            tensor = _converted(tensor, dtype)
        return tensor
    return _copied(tensor, dtypes)


class _Copy(_Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: _Copy, tensor: Tensor, *dtypes: Dtype) -> Tensor:
        ctx.back = (*dtypes[-2::-1], tensor.dtype)
        return _copied(tensor, dtypes)

    @staticmethod
    def backward(ctx: _Copy, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return recast(gradient, *ctx.back), *(None for _ in ctx.back)


def _copied(tensor: Tensor, dtypes: Iterable[Dtype]) -> Tensor:
    for dtype in dtypes:
        tensor = _filled(_empty_like_instance(tensor, dtype=dtype), tensor)
    return tensor


def widened(tensor: Tensor) -> Tensor:
    """Return a float32 copy of a tensor that has no gradient."""
    return _copied(tensor, (FLOAT32,))


def write(tensor: Tensor, values: Tensor) -> None:
    """Give a tensor that has no gradient the values of another, in its own dtype."""
    _filled(tensor, values)


def cast(tensor: Tensor, dtype: Dtype) -> Tensor:
    """Return a tensor in `dtype` if it is eligible (float16, bfloat16, float32), else as it is."""
    current = dtype_of(tensor)
    if current is dtype or (
        current is not FLOAT32 and current is not _FLOAT16 and current is not _BFLOAT16
    ):
        return tensor
    return recast(tensor, dtype)


def rounded(tensor: Tensor, dtype: Dtype) -> Tensor:
    """Return a tensor's values rounded to the low `dtype`, in float32."""
    current = dtype_of(tensor)
    if current is dtype:
        return recast(tensor, FLOAT32)
    if current is FLOAT32 or current is _FLOAT16 or current is _BFLOAT16:
        return recast(tensor, dtype, FLOAT32)
    return tensor


def each(
    to: Callable[[Tensor, Dtype], Tensor], dtype: Dtype, values: Iterable[object]
) -> list[object]:
    """Return values with every tensor among them cast by `to`."""
    return [to(value, dtype) if isinstance(value, Tensor) else value for value in values]


def map_floats(result: object, dtype: Dtype) -> object:
    """Return a result, a tensor or tuples and lists of them, with eligible tensors in `dtype`."""
    if type(result) is Tensor:
        return cast(result, dtype)
    return mapped(
        result, lambda value: isinstance(value, Tensor), lambda tensor: cast(tensor, dtype)
    )


NESTING = nesting(Tensor, Tensor, (), (FLOAT32, *LOW), dtype_of)
tensors, floats, convert = NESTING
