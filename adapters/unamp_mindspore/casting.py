"""Casts of tensors, one by one and in argument lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mindspore import ops
from mindspore._c_expression import TensorPy, _empty_like_instance
from mindspore.common.api import _pynative_executor

from unamp_mindspore.state import FLOAT32, LOW, Parameter, Tensor, thread

__all__ = ["cast", "convert", "floats", "is_kept", "map_floats", "recording", "rounded", "tensors", "to_low"]

# The originals, not the names, behind which a region puts other things.
_converted_with_gradient = ops.Cast().__call__
_filled = vars(TensorPy)["copy_"]
_contiguous = vars(TensorPy)["is_contiguous"]
_FLOAT16, _BFLOAT16 = LOW

#: Whether MindSpore is recording what runs, for gradients.
recording = _pynative_executor._executor.requires_grad


def _cast(tensor: Any, dtype: Any) -> Any:
    # On a CPU the operation Cast takes ten times as long as a copy into a tensor of the other dtype, which has no gradient.
    if recording() or not _contiguous(tensor):
        return _converted_with_gradient(tensor, dtype)
    return _filled(_empty_like_instance(tensor, dtype=dtype), tensor)


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
        return _cast(_cast(tensor, dtype), FLOAT32)
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


def convert(to: Callable[[Any, Any], Any], dtype: Any, value: Any) -> Any:
    """An argument with its tensors converted: a tensor, or a list or tuple of them, in any nesting."""
    kind = type(value)
    if kind is Tensor:
        return to(value, dtype)
    if kind is int or kind is bool or value is None:
        return value
    if isinstance(value, Tensor):
        return to(value, dtype)
    if kind is list or kind is tuple:
        return kind([convert(to, dtype, item) for item in value])
    return value


def map_floats(result: Any, dtype: Any) -> Any:
    """A result with its eligible tensors in `dtype`: a tensor, or tuples and lists of them."""
    if isinstance(result, Tensor):
        return cast(result, dtype)
    if isinstance(result, (tuple, list)):
        items = [map_floats(item, dtype) for item in result]
        return type(result)(*items) if hasattr(result, "_fields") else type(result)(items)
    return result


def tensors(value: Any) -> Iterator[Any]:
    """The tensors in an argument or a result, in any nesting of lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)


def floats(value: Any) -> list[Any]:
    """The dtypes of the eligible tensors in an argument or a result."""
    found: list[Any] = []
    _collect(value if type(value) in (list, tuple) else (value,), found)
    return found


def _collect(values: Any, found: list[Any]) -> None:
    # Every call in a region that does not leave at once comes through here: no generators, the commonest kinds first.
    for value in values:
        kind = type(value)
        if kind is Tensor:
            dtype = value.dtype
        elif kind is int or kind is bool or value is None or kind is float or kind is str:
            continue
        elif kind is list or kind is tuple:
            _collect(value, found)
            continue
        elif kind is dict:
            _collect(value.values(), found)
            continue
        elif isinstance(value, Tensor):
            dtype = value.dtype
        else:
            continue
        if dtype is FLOAT32 or dtype is _FLOAT16 or dtype is _BFLOAT16:
            found.append(dtype)
