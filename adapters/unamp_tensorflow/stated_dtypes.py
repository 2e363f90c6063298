"""Patches of functions that state a dtype and raise on any other: tensors are cast to that dtype.

Variables, arrays of tensors, lists that become one tensor, and Python functions state a dtype. A
rule may have given a tensor another dtype than it would have without a region.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import tensorflow as tf

from unamp._function_types import Function, Keywords
from unamp.adapter.state import in_regions, suspended
from unamp.regions import innermost_region
from unamp_tensorflow.casting import cast, convert, eligible_dtype, eligible_dtypes
from unamp_tensorflow.state import ELIGIBLE, FLOAT32, thread

if TYPE_CHECKING:
    from tensorflow.python.ops.script_ops import EagerFunc

    from unamp.adapter.replacing import Replacement
    from unamp_tensorflow.state import SomeTensor, Value

DtypeT = TypeVar("DtypeT")

# Each function decorated with this is called with the original, which it replaces, and with the
# original's arguments.
_in_regions = in_regions(thread)


def taking(position: int, name: str) -> Replacement:
    """Return the replacement of a method that casts an argument to the dtype of the object.

    Args:
        position: the argument's position, after the object.
        name: the argument's name.
    """

    @_in_regions
    def method(
        original: Function,
        self: tf.Variable | tf.TensorArray | tf.linalg.LinearOperator,
        *args: Any,
        **kwargs: Any,
    ) -> Value:
        own = tf.as_dtype(self.dtype).as_datatype_enum
        if own in ELIGIBLE:
            if name in kwargs:
                kwargs[name] = convert(cast, own, kwargs[name])
            elif len(args) > position:
                value = convert(cast, own, args[position])
                args = (*args[:position], value, *args[position + 1 :])
        return original(self, *args, **kwargs)

    return method


@_in_regions
def packing(
    original: Function, v: Value, dtype: tf.DType | None = None, *args: Any, **kwargs: Any
) -> Value:
    """Let a list of tensors in different dtypes become one tensor.

    A dtype that the caller names is an explicit cast.
    """
    if dtype is None:
        # No dtype is named: the tensors must agree, and the operation that joins them has a rule.
        return original(_alike(v), dtype, *args, **kwargs)
    wanted = tf.as_dtype(dtype).as_datatype_enum
    with suspended(thread):
        return original(
            convert(cast, wanted, v) if wanted in ELIGIBLE else v, dtype, *args, **kwargs
        )


@_in_regions
def as_tensor(
    original: Function, self: tf.Tensor, dtype: tf.DType | None = None, *args: Any, **kwargs: Any
) -> tf.Tensor:
    """Widen a low tensor where TensorFlow asks for a float32 one, and would convert none itself."""
    return original(_wide(self, dtype), dtype, *args, **kwargs)


@_in_regions
def as_specified(original: Function, self: tf.TensorSpec, value: Value, context: object) -> Value:
    """Widen a low argument of a function whose signature states float32."""
    return original(self, _wide(value, self.dtype), context)


@_in_regions
def as_arguments(
    original: Function,
    self: tf.types.experimental.ConcreteFunction,
    tensor_inputs: Sequence[tf.Tensor],
    captured_inputs: Sequence[tf.Tensor],
) -> Value:
    """Widen low arguments of a function whose graph is finished and takes float32."""
    stated = [each.dtype for each in self.inputs[: len(tensor_inputs)]]
    return original(self, [*map(_wide, tensor_inputs, stated)], captured_inputs)


def _wide(value: Value, stated: object) -> Value:
    """Return a low tensor in float32, if float32 is stated."""
    return cast(value, FLOAT32) if stated == tf.float32 else value


@_in_regions
def casting(original: Function, *args: Any, **kwargs: Any) -> SomeTensor:
    """Join lists of tensors that are cast with no policy in force: the call names the dtype."""
    return original(*map(_packed, args), **{name: _packed(value) for name, value in kwargs.items()})


def _packed(value: Value) -> Value:
    if not isinstance(value, (list, tuple)) or not any(map(eligible_dtype, tf.nest.flatten(value))):
        return value
    with suspended(thread):
        return tf.convert_to_tensor(_alike(value))


def _alike(value: Value) -> Value:
    """Return a list of tensors, all in float32 if their dtypes differ."""
    found = {eligible_dtype(each) for each in tf.nest.flatten(value)} - {0}
    return convert(cast, FLOAT32, value) if len(found) > 1 else value


@_in_regions
def initial(
    original: Function, self: tf.Variable, initial_value: Value = None, *args: Any, **kwargs: Any
) -> None:
    """Make a variable's initial value, which may be a list or a function, without a policy."""
    with suspended(thread):
        original(self, _wide(_alike(initial_value), kwargs.get("dtype")), *args, **kwargs)


@_in_regions
def drawing(original: Function, *args: Any, **kwargs: Any) -> Value:
    """Cast the parameters of random numbers to the numbers' dtype: float32, or the caller's."""
    with suspended(thread):
        args, kwargs = in_stated_dtype(original, args, kwargs)
        return original(*args, **kwargs)


def in_stated_dtype(
    function: Function, args: Sequence[Value], kwargs: Keywords, ruled: int = 0
) -> tuple[Any, Keywords]:
    """Return arguments in the dtype that the caller names for the result; else in one dtype.

    Args:
        function: the function, whose signature says where its `dtype` is.
        args: the positional arguments.
        kwargs: the named arguments.
        ruled: the number of the dtype that a rule has cast the arguments to, which then replaces
            the caller's `dtype`; 0 without a rule. Without one, arguments that are all float32
            stay as they are, as outside of regions.
    """
    found = {*eligible_dtypes(args, kwargs)}
    if found <= {FLOAT32} and not ruled:
        return args, kwargs
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    stated = bound.arguments.get("dtype")
    number = 0 if stated is None else tf.as_dtype(stated).as_datatype_enum
    if ruled and number in ELIGIBLE:
        bound.arguments["dtype"] = tf.as_dtype(ruled)
        return bound.args, bound.kwargs
    target = number if number in ELIGIBLE else FLOAT32 if len(found) > 1 else 0
    return (
        (convert(cast, target, args), convert(cast, target, kwargs)) if target else (args, kwargs)
    )


@_in_regions
def padding(original: Function, value: Value, output_type: tf.DType) -> tf.Tensor:
    """Cast the number that pads a dataset's elements to the elements' dtype."""
    stated = output_type.as_datatype_enum
    if stated in ELIGIBLE:
        value = cast(tf.convert_to_tensor(value), stated)
    return original(value, output_type)


@_in_regions
def map_result(original: Function, values: Sequence[Value], specs: Sequence[tf.TypeSpec]) -> Value:
    """Cast the results of a function in `tf.map_fn` to the dtypes that the caller states."""
    stated = [getattr(spec, "dtype", None) for spec in specs]
    wanted = [dtype.as_datatype_enum if isinstance(dtype, tf.DType) else 0 for dtype in stated]
    return original(
        [_stated(value, dtype) for value, dtype in zip(values, wanted, strict=True)], specs
    )


@_in_regions
def agreeing(original: Function, *args: Any, **kwargs: Any) -> Value:
    """Widen the tensors among arguments if their dtypes differ: TensorFlow would raise."""
    args, kwargs = _alike([args, kwargs])
    return original(*args, **kwargs)


@_in_regions
def of_operator(original: Function, value: object, *args: Any, **kwargs: Any) -> object:
    """Widen the tensors that a linear operator is made from.

    TensorFlow has no linear operators in bfloat16, and combines none of different dtypes.
    """
    if isinstance(value, tf.Tensor):
        value = cast(value, FLOAT32)
    return original(value, *args, **kwargs)


@_in_regions
def python_function(
    original: Function,
    self: EagerFunc,
    func: Function,
    Tout: Sequence[tf.DType],  # noqa: N803 - TensorFlow's
    *rest: Any,
    **named: Any,
) -> None:
    """Have a function in `tf.py_function` follow the policy, and cast results to stated dtypes.

    In a graph it runs later, in one of TensorFlow's threads, which is in no region.
    """
    stated = [tf.as_dtype(dtype).as_datatype_enum for dtype in Tout]
    original(self, _in_region(func, stated, _stated), Tout, *rest, **named)


@_in_regions
def numpy_function(
    original: Function,
    func: Function,
    inp: Sequence[Value],
    Tout: tf.DType | Sequence[tf.DType],  # noqa: N803 - TensorFlow's
    *rest: Any,
    **named: Any,
) -> Value:
    """Have a function in `tf.numpy_function`, in a graph, follow the policy; cast its results."""
    if not tf.executing_eagerly():
        stated = [
            tf.as_dtype(dtype) for dtype in (Tout if isinstance(Tout, (list, tuple)) else [Tout])
        ]
        func = _in_region(func, stated, _array)
    return original(func, inp, Tout, *rest, **named)


def _in_region(
    function: Function, stated: Sequence[DtypeT], to: Callable[[Value, DtypeT], Value]
) -> Function:
    """Return a function that runs in the innermost region, and casts results to stated dtypes."""
    region = innermost_region()
    if region is None:
        return function

    def run(*args: Value) -> Value:
        with region:
            results = function(*args)
        if isinstance(results, (list, tuple)):
            return [to(result, dtype) for result, dtype in zip(results, stated, strict=False)]
        return to(results, stated[0]) if stated else results

    return run


def _array(value: Value, dtype: tf.DType) -> Value:
    return (
        np.asarray(value, dtype.as_numpy_dtype)
        if eligible_dtype(value) and dtype.as_datatype_enum in ELIGIBLE
        else value
    )


def _stated(value: Value, dtype: int) -> Value:
    return cast(value, dtype) if dtype in ELIGIBLE else value
