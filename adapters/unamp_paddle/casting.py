"""Casts of tensors, one by one and in argument lists."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import paddle

from unamp.adapter.arguments import mapped, nesting
from unamp_paddle import arithmetic, rounding
from unamp_paddle.rounding import Way, as_it_is, in_place, narrow, nearest, widen
from unamp_paddle.state import FLOAT32, FORGETFUL, LOW, Parameter, Tensor, Value, dtype_of, is_grad_enabled, thread

__all__ = [
    "NESTING", "cast", "chosen", "convert", "each", "floats", "is_kept", "lowered", "map_floats", "owned", "rounded", "tensors",
    "to_low",
]  # fmt: skip

# The function itself, not the module's attribute, which a region replaces.
_cast = paddle._C_ops.cast
_in_dynamic_mode = paddle.in_dynamic_mode
_TENSORS = (Tensor, Value)
_FLOAT16, _BFLOAT16 = LOW
_EITHER = frozenset({Tensor, Parameter})
#: Classes of tensors whose dtype is the singleton without further ado.
_QUICK = frozenset({Tensor, Parameter}) - frozenset(FORGETFUL)
_WAYS: dict[Callable[[Any, Any], Any], Way] = {how: Way(how) for how in (rounding.rounded, in_place, as_it_is)}


def cast(tensor: Any, dtype: Any) -> Any:
    """Return a tensor in `dtype` if it is eligible (float16, bfloat16 or float32), else as it is."""
    current = dtype_of(tensor)
    if current is dtype or (current is not FLOAT32 and current is not _FLOAT16 and current is not _BFLOAT16):
        return tensor
    return widen(tensor, kept=True) if dtype is FLOAT32 else _cast(tensor, dtype)


def to_low(tensor: Any, dtype: Any) -> Any:
    """Return a tensor as `cast` does; a float32 parameter is cast once and kept for the outermost region."""
    if type(tensor) is Parameter and dtype_of(tensor) is FLOAT32 and (entry := _kept(tensor, dtype)) is not None:
        if entry[0] is None:
            entry[0] = _cast(tensor, dtype)
        return entry[0]
    return cast(tensor, dtype)


def each(to: Callable[[Any, Any], Any], dtype: Any, values: Iterable[Any]) -> list[Any]:
    """Return values with every tensor among them cast by `to`."""
    return [to(value, dtype) if type(value) in _EITHER else value for value in values]


def rounded(tensor: Any, dtype: Any, how: Callable[[Any, Any], Any] = rounding.rounded) -> Any:
    """Return a tensor's values rounded to low, in float32; a float32 parameter is rounded once, as in `to_low`.

    Args:
        tensor: the tensor.
        dtype: the low dtype.
        how: how its gradient is rounded; see `rounding.Way`.
    """
    kind = type(tensor)
    current = tensor.dtype if kind in _QUICK else dtype_of(tensor)
    if current is FLOAT32:
        if kind is Parameter and (entry := _kept(tensor, dtype)) is not None:
            return _kept_rounded(entry, tensor, dtype, how)
        if (
            kind is Value or math.prod(tensor.shape) < arithmetic.FEWEST[dtype is _BFLOAT16]
        ):  # too few numbers for anything but casts to pay
            return _cast(_cast(tensor, dtype), FLOAT32)
        return nearest(tensor, dtype, _WAYS[how])
    if current is dtype:
        return widen(tensor, _WAYS[how])
    if current is _FLOAT16 or current is _BFLOAT16:
        return _cast(_cast(tensor, dtype), FLOAT32)
    return tensor


def _kept_rounded(entry: list[Any], parameter: Any, dtype: Any, how: Callable[[Any, Any], Any]) -> Any:
    if entry[1] is None:
        way = Way(how)
        entry[1:] = nearest(parameter, dtype, way), way
    elif how is not in_place:  # its gradient is the sum of several, and not all of them are memory of their own
        entry[2].how = rounding.rounded
    return entry[1]


#: As `rounded`, for an operation whose gradients are memory of their own.
owned = partial(rounded, how=in_place)


def chosen(tensor: Any, dtype: Any) -> Any:
    """Round as `rounded` does, for an operation whose gradient chooses among the numbers of the result's."""
    return widen(tensor, _WAYS[as_it_is]) if dtype_of(tensor) is dtype else rounded(tensor, dtype)


def _kept(parameter: Any, dtype: Any) -> list[Any] | None:
    """Return where a parameter's cast to low, and its values rounded to low in float32, are kept; None where they must not be.

    Not kept: what is cast under `no_grad`, whose gradient would be lost to a later use under grad, and what needs none.
    """
    kept = thread.weights
    if kept is None or parameter.stop_gradient or not is_grad_enabled() or not _in_dynamic_mode():
        return None
    version = parameter._inplace_version()
    found = kept.get(id(parameter))
    if found is not None and found[1] == version and found[2] is dtype:
        return found[3]  # type: ignore[no-any-return]
    casts = [None, None, None]
    kept[id(parameter)] = (parameter, version, dtype, casts)
    return casts


def is_kept(tensor: Any, dtype: Any) -> bool:
    """Return whether a parameter's cast to low, or its rounded values, are kept from before."""
    found = None if thread.weights is None else thread.weights.get(id(tensor))
    if found is None or found[0] is not tensor or found[1] != tensor._inplace_version() or found[2] is not dtype:
        return False
    return any(cast is not None for cast in found[3])


def lowered(result: Any, dtype: Any, rounded: Callable[[Any, Any], Any] | None = None) -> Any:
    """Return the float32 result of an emulated operation, rounded to low; see `rounding.narrow`."""
    kind = type(result)
    current = result.dtype if kind in _QUICK else None if kind is not Tensor else dtype_of(result)
    if kind is Tensor and current is FLOAT32 and result._is_initialized():
        if math.prod(result.shape) < arithmetic.FEWEST[dtype is _BFLOAT16]:
            return _cast(result, dtype)
        return narrow(result, dtype, rounded)
    return map_floats(result, dtype)


def map_floats(result: Any, dtype: Any) -> Any:
    """Return a result with its eligible tensors in `dtype`: a tensor, or tuples and lists of them."""
    if isinstance(result, _TENSORS):
        return result if _not_asked_for(result) and list(result.shape) != [0] else _own(result, dtype)
    return mapped(result, _is_tensor, lambda tensor: tensor if _not_asked_for(tensor) else _own(tensor, dtype))


def _not_asked_for(result: Any) -> bool:
    """Return whether a result is an optional one: a tensor without contents, as one without elements is, but for its shape."""
    if type(result) is not Tensor or result._is_initialized():
        return False
    return 0 not in result.shape or list(result.shape) == [0]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, _TENSORS)


def _own(tensor: Any, dtype: Any) -> Any:
    return widen(tensor, copied=True) if dtype is FLOAT32 and dtype_of(tensor) in LOW else cast(tensor, dtype)


_tensor, _parameter = (None, None) if Tensor in FORGETFUL else (Tensor, Parameter)
NESTING = nesting(_tensor, _parameter, FORGETFUL, (FLOAT32, *LOW), dtype_of)
tensors, floats, convert = NESTING
