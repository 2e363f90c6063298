"""Places that state a dtype, and where TensorFlow raises on any other.

They are variables, arrays of tensors, lists that become one tensor, and Python functions.

A rule may have given a tensor another dtype than it has without a region. Here it gets the one that
is stated.
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

# Each of the decorated functions is called with the one that it replaces, which is the original,
# and that one's arguments.
_in_regions = in_regions(thread)


def taking(position: int, name: str) -> Replacement:
    """Cast an argument of a method to the dtype that its object states.

    The object is a variable, or an array of tensors.

    Args:
        position: where the method takes the argument, after the object.
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
                kwargs[name] = cast(kwargs[name], own)
            elif len(args) > position:
                args = (*args[:position], cast(args[position], own), *args[position + 1 :])
        return original(self, *args, **kwargs)

    return method


@_in_regions
def packing(
    original: Function, v: Value, dtype: tf.DType | None = None, *args: Any, **kwargs: Any
) -> Value:
    """Let lists of tensors stand where one tensor is expected.

    A dtype that is asked for is an explicit cast.
    """
    if dtype is None:
        # Nobody asked: the tensors need one dtype, and the operation that joins them has its rule.
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
    """Let a low tensor stand where a tensor in float32 is asked for.

    TensorFlow takes no other, and converts none.
    """
    return original(_wide(self, dtype), dtype, *args, **kwargs)


@_in_regions
def as_specified(original: Function, self: tf.TensorSpec, value: Value, context: object) -> Value:
    """Let a low tensor be an argument of a function whose signature says float32."""
    return original(self, _wide(value, self.dtype), context)


@_in_regions
def as_arguments(
    original: Function,
    self: tf.types.experimental.ConcreteFunction,
    tensor_inputs: Sequence[tf.Tensor],
    captured_inputs: Sequence[tf.Tensor],
) -> Value:
    """Let low tensors be arguments of a function whose graph is finished, and takes float32."""
    stated = [each.dtype for each in self.inputs[: len(tensor_inputs)]]
    return original(self, [*map(_wide, tensor_inputs, stated)], captured_inputs)


def _wide(value: Value, stated: object) -> Value:
    """Return a low tensor in float32, where that is stated."""
    return cast(value, FLOAT32) if stated == tf.float32 else value


@_in_regions
def casting(original: Function, *args: Any, **kwargs: Any) -> SomeTensor:
    """Let a list of tensors that is cast become one tensor by no rule: the call says the dtype."""
    return original(*map(_packed, args), **{name: _packed(value) for name, value in kwargs.items()})


def _packed(value: Value) -> Value:
    if not isinstance(value, (list, tuple)) or not any(map(eligible_dtype, tf.nest.flatten(value))):
        return value
    with suspended(thread):
        return tf.convert_to_tensor(_alike(value))


def _alike(value: Value) -> Value:
    """Return a list of tensors, in float32 where their dtypes differ."""
    found = {eligible_dtype(each) for each in tf.nest.flatten(value)} - {0}
    return convert(cast, FLOAT32, value) if len(found) > 1 else value


@_in_regions
def initial(
    original: Function, self: tf.Variable, initial_value: Value = None, *args: Any, **kwargs: Any
) -> None:
    """Let the initial value of a variable, a list of tensors or a function, be made by no rule."""
    with suspended(thread):
        original(self, _wide(_alike(initial_value), kwargs.get("dtype")), *args, **kwargs)


@_in_regions
def drawing(original: Function, *args: Any, **kwargs: Any) -> Value:
    """Let random numbers have low parameters.

    Their dtype is stated: float32 unless the caller says another.
    """
    with suspended(thread):
        args, kwargs = in_stated_dtype(original, args, kwargs)
        return original(*args, **kwargs)


def in_stated_dtype(
    function: Function, args: Sequence[Value], kwargs: Keywords, ruled: int = 0
) -> tuple[Any, Keywords]:
    """Return arguments that agree with the dtype that a function is told for its result.

    Where it is told none, they agree with one another.

    Args:
        ruled: the dtype that a rule has cast them to, which is stated in place of the caller's; 0
            without a rule, where those that are all float32 are as the caller has them outside of
            regions.
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
    """Let the number that pads elements of a dataset have their dtype."""
    stated = output_type.as_datatype_enum
    if stated in ELIGIBLE:
        value = cast(tf.convert_to_tensor(value), stated)
    return original(value, output_type)


@_in_regions
def map_result(original: Function, values: Sequence[Value], specs: Sequence[tf.TypeSpec]) -> Value:
    """Let a function that is handed to `tf.map_fn` return the dtypes that were stated for it."""
    stated = [getattr(spec, "dtype", None) for spec in specs]
    wanted = [dtype.as_datatype_enum if isinstance(dtype, tf.DType) else 0 for dtype in stated]
    return original(
        [_stated(value, dtype) for value, dtype in zip(values, wanted, strict=True)], specs
    )


@_in_regions
def sparse_operator(original: Function, sp_x: tf.SparseTensor, y: Value) -> tf.SparseTensor:
    """Let an operator of a sparse tensor and a dense one differ in dtype.

    TensorFlow asks for the dense one in the other's dtype.
    """
    found = (eligible_dtype(sp_x), eligible_dtype(y))
    if all(found) and found[0] != found[1]:
        sp_x, y = cast(sp_x, FLOAT32), cast(y, FLOAT32)
    return original(sp_x, y)


@_in_regions
def of_operator(original: Function, value: object, *args: Any, **kwargs: Any) -> object:
    """Let a low tensor be what a linear operator is made of.

    TensorFlow has none in bfloat16, and combines none that differ in dtype.
    """
    if isinstance(value, tf.Tensor):
        value = cast(value, FLOAT32)
    return original(value, *args, **kwargs)


@_in_regions
def nearness(original: Function, x: object, y: object, *args: Any, **kwargs: Any) -> object:
    """Let `tf.debugging.assert_near` compare low tensors with float32 ones."""
    return original(*_alike([x, y]), *args, **kwargs)


@_in_regions
def python_function(
    original: Function,
    self: EagerFunc,
    func: Function,
    Tout: Sequence[tf.DType],  # noqa: N803 - TensorFlow's
    *rest: Any,
    **named: Any,
) -> None:
    """Let a function in `tf.py_function` follow the policy, and return its stated dtypes.

    In a graph it runs later, in a thread of TensorFlow's, which is in no region.
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
    """Let a function in `tf.numpy_function`, in a graph, follow the policy.

    It returns the dtypes that were stated for it.
    """
    if not tf.executing_eagerly():
        stated = [
            tf.as_dtype(dtype) for dtype in (Tout if isinstance(Tout, (list, tuple)) else [Tout])
        ]
        func = _in_region(func, stated, _array)
    return original(func, inp, Tout, *rest, **named)


def _in_region(
    function: Function, stated: Sequence[DtypeT], to: Callable[[Value, DtypeT], Value]
) -> Function:
    """Return a function that runs in the region around.

    Its results are converted to the dtypes that are stated.
    """
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
