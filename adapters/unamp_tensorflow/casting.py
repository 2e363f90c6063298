"""Casts of tensors, one by one and in argument lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context
from tensorflow.python.framework import composite_tensor, ops
from tensorflow.python.ops import gen_math_ops, resource_variable_ops
from tensorflow.python.types import core

from unamp_tensorflow.state import ELIGIBLE, NAMES, thread

__all__ = ["EagerTensor", "Variable", "cast", "convert", "dtype_of", "execute", "kind", "kinds", "literal", "tensors"]

# The function itself, not the module's attribute, which a region replaces.
execute = pywrap_tfe.TFE_Py_FastPathExecute
EagerTensor = ops.EagerTensor
Variable = resource_variable_ops.ResourceVariable

_TENSORS = (core.Tensor, tf.Variable, np.ndarray)
_NUMBERS = {name: getattr(tf, name).as_datatype_enum for name in NAMES.values()}


def kind(value: Any) -> int:
    """The number of an eligible tensor's dtype; 0 for everything else."""
    if type(value) is EagerTensor:
        number = value._datatype_enum()
    elif isinstance(value, _TENSORS):
        if isinstance(value, composite_tensor.CompositeTensor) and not isinstance(value, tf.Variable):
            return 0  # a sparse or ragged tensor is computed with by its parts
        dtype = value.dtype
        number = dtype.as_datatype_enum if isinstance(dtype, tf.DType) else _NUMBERS.get(str(dtype), 0)
    else:
        return 0
    return number if number in ELIGIBLE else 0


def dtype_of(tensor: Any) -> str:
    """The name of a tensor's dtype."""
    return tf.as_dtype(tensor.dtype).name


def cast(value: Any, target: int) -> Any:
    """A tensor in the dtype of that number if it is eligible, else as it is."""
    found = kind(value)
    if not found or found == target:
        return value
    if thread.parameters is not None and (kept := thread.parameters.get(id(value))) and kind(kept[1]) == target:
        return kept[1]
    eager = type(value)
    if eager is EagerTensor or eager is Variable:
        running = context._context
        if running._thread_local_data.is_eager:
            return execute(running, "Cast", None, value, "DstT", target, "Truncate", False)
    if not isinstance(value, tf.Tensor):
        value = tf.convert_to_tensor(value)
    return gen_math_ops.cast(value, target)


def literal(value: Any, target: int) -> Any:
    """A Python list or number where a tensor is expected, as a tensor; whole numbers stay what they are."""
    made = tf.convert_to_tensor(value)
    return cast(made, target)


def convert(to: Callable[[Any, int], Any], target: int, value: Any) -> Any:
    """An argument with its tensors converted: a tensor, or a list, tuple or dictionary of them."""
    if kind(value):
        return to(value, target)
    if isinstance(value, (list, tuple)) and value:
        items = [convert(to, target, item) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if type(value) is dict:
        return {key: convert(to, target, item) for key, item in value.items()}
    return value


def kinds(value: Any) -> list[int]:
    """The dtypes of the eligible tensors in an argument or a result."""
    found: list[int] = []
    _collect(value, found)
    return found


def _collect(values: Any, found: list[int]) -> None:
    # Every call of a function in a region comes through here: no generators.
    for value in values.values() if type(values) is dict else values:
        if isinstance(value, (list, tuple)) or type(value) is dict:
            _collect(value, found)
        elif number := kind(value):
            found.append(number)


def tensors(value: Any) -> Iterator[Any]:
    """The eligible tensors in an argument or a result, in any nesting of lists, tuples and dictionaries."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)
    elif kind(value):
        yield value
