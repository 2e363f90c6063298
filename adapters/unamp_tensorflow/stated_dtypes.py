"""Places that state a dtype, or TensorFlow raises: variables, arrays of tensors, lists that become one, Python functions.

A rule may have given a tensor another dtype than it has without a region. Here it gets the one that is stated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from unamp.adapter.state import suspended
from unamp.regions import innermost_region
from unamp_tensorflow.casting import cast, convert, eligible_dtype
from unamp_tensorflow.state import ELIGIBLE, FLOAT32, Function, thread

__all__ = ["numpy_function", "packing", "python_function", "sparse_operator", "taking"]

# Each function here returns what stands in for a function of TensorFlow, given that function.


def taking(position: int, name: str) -> Callable[[Function], Function]:
    """Cast an argument of a method to the dtype that its object states: a variable, or an array of tensors.

    Args:
        position: where the method takes the argument, after the object.
        name: the argument's name.
    """

    def replacement(original: Function) -> Function:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            own = tf.as_dtype(self.dtype).as_datatype_enum if thread.plan is not None else 0
            if own in ELIGIBLE:
                if name in kwargs:
                    kwargs[name] = cast(kwargs[name], own)
                elif len(args) > position:
                    args = (*args[:position], cast(args[position], own), *args[position + 1 :])
            return original(self, *args, **kwargs)

        return method

    return replacement


def packing(original: Function) -> Function:
    """Let lists of tensors stand where one tensor is expected: a dtype that is asked for is an explicit cast."""

    def _autopacking_conversion_function(v: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if thread.plan is None:
            return original(v, dtype, *args, **kwargs)
        found = {eligible_dtype(value) for value in tf.nest.flatten(v)} - {0}
        if dtype is None:  # nobody asked: the tensors need one dtype, and what puts them together follows its rule
            return original(convert(cast, FLOAT32, v) if len(found) > 1 else v, dtype, *args, **kwargs)
        wanted = tf.as_dtype(dtype).as_datatype_enum
        with suspended(thread):
            return original(convert(cast, wanted, v) if wanted in ELIGIBLE else v, dtype, *args, **kwargs)

    return _autopacking_conversion_function


def sparse_operator(original: Function) -> Function:
    """Let an operator of a sparse tensor and a dense one differ in dtype: it asks for the dense one in the other's dtype."""

    def binary_op_wrapper_sparse(sp_x: Any, y: Any) -> Any:
        found = (eligible_dtype(sp_x), eligible_dtype(y))
        if thread.plan is not None and all(found) and found[0] != found[1]:
            sp_x, y = cast(sp_x, FLOAT32), cast(y, FLOAT32)
        return original(sp_x, y)

    return binary_op_wrapper_sparse


def python_function(original: Function) -> Function:
    """Let a function that is handed to `tf.py_function` follow the policy, and return the dtypes that were stated for it.

    In a graph it runs later, in a thread of TensorFlow's, which is in no region.
    """

    def __init__(self: Any, func: Function, Tout: Any, *rest: Any, **named: Any) -> None:  # noqa: N803, N807 - TensorFlow's
        region = innermost_region()
        if thread.plan is None or region is None:
            original(self, func, Tout, *rest, **named)
            return
        stated = [tf.as_dtype(dtype).as_datatype_enum for dtype in Tout]

        def run(*args: Any) -> Any:
            with region:
                results = func(*args)
            if isinstance(results, (list, tuple)):
                return [_stated(result, dtype) for result, dtype in zip(results, stated, strict=False)]
            return _stated(results, stated[0]) if stated else results

        original(self, run, Tout, *rest, **named)

    return __init__


def numpy_function(original: Function) -> Function:
    """Let a function that is handed to `tf.numpy_function` in a graph follow the policy, and return the stated dtypes."""

    def py_func_common(func: Function, inp: Any, Tout: Any, *rest: Any, **named: Any) -> Any:  # noqa: N803 - TensorFlow's
        region = innermost_region()
        if thread.plan is None or region is None or tf.executing_eagerly():
            return original(func, inp, Tout, *rest, **named)
        stated = [tf.as_dtype(dtype) for dtype in (Tout if isinstance(Tout, (list, tuple)) else [Tout])]

        def run(*args: Any) -> Any:
            with region:
                results = func(*args)
            if isinstance(results, (list, tuple)):
                return [_array(result, dtype) for result, dtype in zip(results, stated, strict=False)]
            return _array(results, stated[0]) if stated else results

        return original(run, inp, Tout, *rest, **named)

    return py_func_common


def _array(value: Any, dtype: Any) -> Any:
    return np.asarray(value, dtype.as_numpy_dtype) if eligible_dtype(value) and dtype.as_datatype_enum in ELIGIBLE else value


def _stated(value: Any, dtype: int) -> Any:
    return cast(value, dtype) if dtype in ELIGIBLE else value
