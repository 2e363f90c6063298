"""Casts of tensors, one by one and in nested arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.framework import composite_tensor, ops
from tensorflow.python.ops import gen_math_ops
from tensorflow.python.types import core

from unamp.adapter.arguments import leaves
from unamp_tensorflow.composite_tensors import VALUES
from unamp_tensorflow.state import DTYPES, ELIGIBLE, thread

if TYPE_CHECKING:
    from unamp_tensorflow.state import SomeTensor, Value

# The function itself, not the module's attribute, which a region replaces.
execute = pywrap_tfe.TFE_Py_FastPathExecute
EagerTensor = ops.EagerTensor

_TENSORS = (core.Tensor, tf.Variable, np.ndarray)


def eligible_dtype(value: Value) -> int:
    """Return the number of an eligible tensor's dtype; 0 for everything else."""
    number: int
    if type(value) is EagerTensor:
        number = value._datatype_enum()
    elif isinstance(value, _TENSORS):
        if isinstance(value, composite_tensor.CompositeTensor) and not isinstance(
            value, tf.Variable
        ):
            return 0  # a weak tensor: its parts are tensors that follow rules themselves
        dtype = value.dtype
        number = (
            dtype.as_datatype_enum if isinstance(dtype, tf.DType) else DTYPES.get(str(dtype), 0)
        )
    elif type(value) in VALUES:
        number = value.dtype.as_datatype_enum
    else:
        return 0
    return number if number in ELIGIBLE else 0


def dtype_of(tensor: SomeTensor) -> str:
    """Return the name of a tensor's dtype."""
    return str(tf.as_dtype(tensor.dtype).name)


def cast(value: Value, target: int) -> Value:
    """Return a tensor in the dtype of a number if it is eligible, anything else as it is."""
    found = eligible_dtype(value)
    if not found or found == target:
        return value
    # A layer that computes low has cast its parameters already, once for all uses.
    if (
        thread.parameters is not None
        and (kept := thread.parameters.get(id(value)))
        and eligible_dtype(kept[1]) == target
    ):
        return kept[1]
    of = type(value)
    if of in VALUES:
        return VALUES[of].replaced(value, cast(VALUES[of].get(value), target))
    return gen_math_ops.cast(
        value if isinstance(value, tf.Tensor) else tf.convert_to_tensor(value), target
    )


def cast_back(value: Value, stated: int) -> Value:
    """Return an eligible tensor in the dtype of a number, which is 0 where no dtype is stated."""
    return cast(value, stated) if stated and eligible_dtype(value) else value


def convert(to: Callable[[Value, int], Value], target: int, value: Value) -> Value:
    """Return an argument, a tensor or a list, tuple or dictionary, with its tensors converted."""
    if eligible_dtype(value):
        return to(value, target)
    if isinstance(value, (list, tuple)) and value:
        items = [convert(to, target, item) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if type(value) is dict:
        return {key: convert(to, target, item) for key, item in value.items()}
    return value


def eligible_dtypes(*values: object) -> list[int]:
    """Return the dtypes of the eligible tensors in arguments or results."""
    found: list[int] = []
    _collect(values, found)
    return found


def _collect(values: Iterable[object], found: list[int]) -> None:
    # Not a generator, which is slower: every call of a composite in a region comes here.
    for value in values:
        if isinstance(value, (list, tuple)):
            _collect(value, found)
        elif type(value) is dict:
            _collect(value.values(), found)
        elif number := eligible_dtype(value):
            found.append(number)


def tensors(value: object) -> Iterator[SomeTensor]:
    """Return the eligible tensors in an argument or result: also in lists, tuples, dictionaries."""
    return filter(eligible_dtype, leaves(value))
