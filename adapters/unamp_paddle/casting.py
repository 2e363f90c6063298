"""Casts of tensors, one by one and in argument lists.

No cast is cached, not even a parameter's: Paddle's optimizers, `set_value` and loading change a
parameter in place without a new version, so an outdated cast could not be recognised.
"""

from __future__ import annotations

import paddle

from unamp.adapter.arguments import mapped, nesting
from unamp_paddle.state import (
    CPU_ONLY,
    FLOAT32,
    FORGETFUL,
    LOW,
    Parameter,
    Tensor,
    TensorT,
    Value,
    dtype_of,
    is_grad_enabled,
    on_gpu,
)

# The functions themselves, not the module's attributes, which a region replaces.
_cast, _scale = paddle._C_ops.cast, paddle._C_ops.scale
_TENSORS = (Tensor, Value)
_FLOAT16, _BFLOAT16 = LOW
#: A factor that makes tiny numbers zero: after multiplying by it and dividing again, a number below
#: 2**-69 is zero, and one above 2**-46 is itself; those in between round to zero in float16.
_FLUSHING = 2.0**-80


def cast(tensor: TensorT, dtype: paddle.dtype) -> TensorT:
    """Return a tensor in `dtype` if it is eligible (float16, bfloat16, float32), else as it is."""
    current = dtype_of(tensor)
    if current is dtype or (
        current is not FLOAT32 and current is not _FLOAT16 and current is not _BFLOAT16
    ):
        return tensor
    wide = tensor if current is FLOAT32 else widen(tensor)
    return wide if dtype is FLOAT32 else narrow(wide, dtype)


def rounded(tensor: TensorT, dtype: paddle.dtype) -> TensorT:
    """Return a tensor's values rounded to a low dtype, in float32."""
    low = cast(tensor, dtype)
    return widen(low) if dtype_of(low) is dtype else tensor


def narrow(tensor: TensorT, dtype: paddle.dtype) -> TensorT:
    """Return a float32 tensor in a low dtype, rounded to nearest, ties to even."""
    # Paddle's cast on the CPU turns numbers between 2**-89 and 2**-77 into float16 numbers of up to
    # 6e-5, where zero is right: they are made zero before.
    if dtype is _FLOAT16 and _on_cpu(tensor):
        tensor = _multiplied(_multiplied(tensor, _FLUSHING), 1 / _FLUSHING)
    return _cast(tensor, dtype)


def widen(tensor: TensorT) -> TensorT:
    """Return a low tensor in float32, with memory of its own."""
    wide = _cast(tensor, FLOAT32)
    # Backward, this cast becomes one of the gradient to float16, with the defect that `narrow` is
    # about: the gradient passes these products before it, the last one first.
    if (
        not tensor.stop_gradient
        and is_grad_enabled()
        and dtype_of(tensor) is _FLOAT16
        and _on_cpu(tensor)
    ):
        return _multiplied(_multiplied(wide, 1 / _FLUSHING), _FLUSHING)
    return wide


def _multiplied(tensor: TensorT, factor: float) -> TensorT:
    return _scale(tensor, factor, -0.0, True)  # adding 0.0 would lose the sign of -0.0


def _on_cpu(tensor: Tensor | Value) -> bool:
    return CPU_ONLY or not on_gpu((tensor,))


def map_floats(result: object, dtype: paddle.dtype) -> object:
    """Return a result, a tensor or tuples and lists of them, with eligible tensors in `dtype`."""
    if isinstance(result, _TENSORS):
        return (
            result if _not_asked_for(result) and list(result.shape) != [0] else cast(result, dtype)
        )
    return mapped(
        result,
        lambda value: isinstance(value, _TENSORS),
        lambda each: each if _not_asked_for(each) else cast(each, dtype),
    )


def _not_asked_for(result: Tensor | Value) -> bool:
    """Return whether a result is an optional one that the caller did not ask for.

    Such a tensor has no contents. Neither has one without elements; the shape tells them apart.
    """
    if type(result) is not Tensor or result._is_initialized():
        return False
    return 0 not in result.shape or list(result.shape) == [0]


# Where dtypes are no singletons, the quick way of `nesting` for the commonest classes would fail.
_tensor, _parameter = (None, None) if Tensor in FORGETFUL else (Tensor, Parameter)
NESTING = nesting(_tensor, _parameter, FORGETFUL, (FLOAT32, *LOW), dtype_of)
tensors, floats, convert = NESTING
