"""Casts of tensors, one by one and in argument lists."""

from __future__ import annotations

from typing import Any

from mindspore._c_expression import TensorPy, _empty_like_instance
from mindspore.common._grad_function import _Function
from mindspore.common.api import _pynative_executor

from unamp.nesting import mapped, nesting
from unamp_mindspore.state import FLOAT32, LOW, Parameter, Tensor, thread

__all__ = ["cast", "convert", "floats", "forget", "is_kept", "map_floats", "recording", "rounded", "tensors", "to_low"]

# The originals, not the names, behind which a region puts other things.
_filled = vars(TensorPy)["copy_"]
_reshaped = vars(TensorPy)["reshape"]
_FLOAT16, _BFLOAT16 = LOW

#: Whether MindSpore is recording what runs, for gradients.
recording = _pynative_executor._executor.requires_grad


class _Cast(_Function):  # type: ignore[misc]
    """A tensor in another dtype, and its gradient in the tensor's."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, dtype: Any) -> Any:
        ctx.dtype = tensor.dtype
        return _copied(tensor, dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return _cast(gradient, ctx.dtype), None


class _Rounded(_Function):  # type: ignore[misc]
    """A float32 tensor rounded to a low dtype, and its gradient rounded as well."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, dtype: Any) -> Any:
        ctx.dtype = dtype
        return _copied(_copied(tensor, dtype), FLOAT32)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return rounded(gradient, ctx.dtype), None


def _copied(tensor: Any, dtype: Any) -> Any:
    # On a CPU the operation Cast takes twenty times as long as a copy into a tensor of the other dtype, which has no gradient.
    return _filled(_empty_like_instance(tensor, dtype=dtype), tensor)


def _cast(tensor: Any, dtype: Any) -> Any:
    return _recorded(_Cast, tensor, dtype) if recording() else _copied(tensor, dtype)


def _recorded(function: Any, tensor: Any, dtype: Any) -> Any:
    if isinstance(tensor, Parameter):  # else the gradient gets the dtype that the parameter had when it was made
        tensor = _reshaped(tensor, tensor.shape)
    return function.apply(tensor, dtype)


def cast(tensor: Any, dtype: Any) -> Any:
    """A tensor in `dtype` if it is eligible (float16, bfloat16 or float32), else as it is."""
    current = tensor.dtype
    if current is dtype or (current is not FLOAT32 and current is not _FLOAT16 and current is not _BFLOAT16):
        return tensor
    return _cast(tensor, dtype)


def to_low(tensor: Any, dtype: Any) -> Any:
    """As `cast`; a float32 parameter is cast once and kept for the outermost region."""
    if isinstance(tensor, Parameter) and tensor.dtype is FLOAT32 and (entry := _kept(tensor, dtype)) is not None:
        return entry[0]
    return cast(tensor, dtype)


def rounded(tensor: Any, dtype: Any) -> Any:
    """A tensor's values rounded to the low `dtype`, in float32; a float32 parameter is rounded once, as in `to_low`."""
    current = tensor.dtype
    if current is FLOAT32:
        if isinstance(tensor, Parameter) and (entry := _kept(tensor, dtype)) is not None:
            if entry[1] is None:
                entry[1] = _cast(entry[0], FLOAT32)
            return entry[1]
        return _recorded(_Rounded, tensor, dtype) if recording() else _copied(_copied(tensor, dtype), FLOAT32)
    if current is dtype:
        return _cast(tensor, FLOAT32)
    if current is _FLOAT16 or current is _BFLOAT16:
        return _cast(_cast(tensor, dtype), FLOAT32)
    return tensor


def _kept(parameter: Any, dtype: Any) -> list[Any] | None:
    """A parameter's cast to low and, once somebody asked, that back in float32; None where it must not be kept.

    Not kept: what is cast while no gradient is recorded, which would be lost to a later use with gradients.
    """
    kept = thread.weights
    if kept is None or not recording():
        return None
    version = parameter._version
    found = kept.get(id(parameter))
    if found is not None and found[1] == version and found[2] is dtype:
        return found[3]  # type: ignore[no-any-return]
    casts = [_cast(parameter, dtype), None]
    kept[id(parameter)] = (parameter, version, dtype, casts)
    return casts


def is_kept(tensor: Any, dtype: Any) -> bool:
    """Whether a parameter's cast to low is kept from before."""
    found = None if thread.weights is None or not recording() else thread.weights.get(id(tensor))
    return found is not None and found[0] is tensor and found[1] == tensor._version and found[2] is dtype


def forget(parameter: Any) -> None:
    """Keep no cast of a parameter that is given other values in a way that leaves its version as it is."""
    if thread.weights:
        thread.weights.pop(id(parameter), None)


def map_floats(result: Any, dtype: Any) -> Any:
    """A result with its eligible tensors in `dtype`: a tensor, or tuples and lists of them."""
    return mapped(result, _is_tensor, lambda tensor: cast(tensor, dtype))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


tensors, floats, convert = nesting(Tensor, Tensor, (), (FLOAT32, *LOW), lambda tensor: tensor.dtype)
