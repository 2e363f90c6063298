"""Calls of operations under a rule, in graphs that MindSpore compiles; see `calls` for PyNative.

MindSpore's compiler reads the source of the functions that are made here, and of those that they
call. Their conditions are about dtypes, which are known when a graph is compiled: only the casts
and the operation itself are left in the graph.

On the CPU low is emulated, as in PyNative mode: inputs are rounded to low, the operation computes
in float32, and its result is rounded to low.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from mindspore import float64
from mindspore._c_expression import amp as strategies
from mindspore._c_expression import typing
from mindspore.ops.functional import assign, depend, mixed_precision_cast
from mindspore.ops.primitive import PrimitiveWithInfer

from unamp._function_types import Function
from unamp_mindspore.state import DTYPES, FLOAT32, Dtype, Tensor

#: MindSpore's strategy that casts nothing. A function without a strategy takes over its caller's.
CASTS_NOTHING = strategies.create_amp_strategy(strategies.AmpLevel.AmpO0, DTYPES["float16"], [], [])

#: The attribute of functions, cells, modules and namespaces that holds their binding: objects whose
#: names are found in them are bound in the same way.
BOUND = "_unamp_bound"

_FLOAT16, _BFLOAT16 = DTYPES["float16"], DTYPES["bfloat16"]

# The dtypes among arguments, as bits of a number.
_HAS_FLOAT32, _HAS_FLOAT16, _HAS_BFLOAT16, _HAS_FLOAT64 = 1, 2, 4, 8
_BITS = {
    FLOAT32: _HAS_FLOAT32,
    _FLOAT16: _HAS_FLOAT16,
    _BFLOAT16: _HAS_BFLOAT16,
    float64: _HAS_FLOAT64,
}
_LOW = _HAS_FLOAT16 | _HAS_BFLOAT16
_ELIGIBLE = _HAS_FLOAT32 | _LOW


class Low(NamedTuple):
    """A policy's low dtype, and the way in which graphs compute in it.

    Attributes:
        emulated: whether low is emulated.
        widened: whether results are cast back to float32.
    """

    dtype: Dtype
    emulated: bool
    widened: bool


def unbound(function: Function) -> Function:
    """Mark a function of unamp's own for the compiler, so that no rule holds in it."""
    vars(function).update({BOUND: None, "amp_strategy": CASTS_NOTHING})
    return function


class _Seen(PrimitiveWithInfer):  # type: ignore[misc]
    """An operator that returns the dtypes among tensors, in any nesting.

    It does so when a graph is compiled, and leaves nothing in the graph.
    """

    def __init__(self) -> None:
        super().__init__("unamp_seen")
        self.set_const_prim(True)
        self.add_prim_attr("constexpr_prim", True)

    def __infer__(self, *values: Mapping[str, object]) -> dict[str, int | None]:
        return {
            "dtype": None,
            "shape": None,
            "value": sum({bit for each in values for bit in _bits(each["dtype"])}),
        }


def _bits(dtype: object) -> Iterator[int]:
    if isinstance(dtype, (tuple, list)):
        for each in dtype:
            yield from _bits(each)
    elif isinstance(dtype, typing.TensorType) and dtype.element_type() in _BITS:
        yield _BITS[dtype.element_type()]


_seen = _Seen()


def bits_of(tensors: Iterable[Tensor]) -> int:
    """Return the eligible dtypes among tensors."""
    return sum({_BITS.get(tensor.dtype, 0) & _ELIGIBLE for tensor in tensors})


# --- functions that the compiler reads ------------------------------------------------------------


@unbound
def _cast_one(dtype, value):  # type: ignore[no-untyped-def]
    if not isinstance(value, Tensor):
        return value
    if _seen(value) & _ELIGIBLE:
        return mixed_precision_cast(dtype, value)
    return value


@unbound
def cast_like(value, other):  # type: ignore[no-untyped-def]
    """Return a value in the dtype of another, where both are eligible tensors."""
    if not isinstance(value, Tensor) or not isinstance(other, Tensor):
        return value
    if _seen(value) & _ELIGIBLE and _seen(other) & _ELIGIBLE:
        return mixed_precision_cast(other.dtype, value)
    return value


@unbound
def _cast(dtype, values, seen):  # type: ignore[no-untyped-def]
    if seen & _HAS_FLOAT64:  # MindSpore's own cast of many values would cast float64, too
        made = ()
        for each in values:
            made += (_cast_one(dtype, each),)  # type: ignore[assignment]
        return made
    return mixed_precision_cast(dtype, values)


@unbound
def cast_found(dtype, found):  # type: ignore[no-untyped-def]
    """Return results in a dtype."""
    # A result in float64 comes from inputs that no rule casts.
    if _seen(found) & _HAS_FLOAT64:
        return found
    if not isinstance(found, tuple):
        return mixed_precision_cast(dtype, found)
    made = ()  # one by one: MindSpore makes a circle of a cast of all views that an operation made
    for each in found:
        made += (mixed_precision_cast(dtype, each),)  # type: ignore[assignment]
    return made


@unbound
def _able(values, seen):  # type: ignore[no-untyped-def]
    """Return values in float32 if low ones are among them: any device has kernels for that.

    For calls that name the dtype of their result, which no rule changes.
    """
    return _cast(FLOAT32, values, seen) if seen & _LOW else values


def _taking_any(body: Function) -> Function:
    """Return a function of any arguments, which passes them to `body` as a tuple and a dictionary.

    The conditions stand in a function of their own: if a cell's `construct` and `bprop` share a
    function of variable arguments with an `if` in it, MindSpore loses that function.
    """

    @unbound
    def unamp_operation(*args, **kwargs):  # type: ignore[no-untyped-def]
        return body(args, kwargs)

    return unamp_operation


def _taking_first(body: Function) -> Function:
    """Return the same for a `body` that takes the first argument by itself.

    The first has a name here that none of the others can have.
    """

    @unbound
    def unamp_operation(unamp_first, *args, **kwargs):  # type: ignore[no-untyped-def]
        return body(unamp_first, args, kwargs)

    return unamp_operation


def low(call: Function, to: Low, own: int = 0) -> Function:
    """Return the function that computes low.

    Args:
        own: the dtypes of tensors that are not among the arguments, as `bits_of` returns them.
    """
    dtype, emulated, widened = to

    @unbound
    def unamp_low(args, kwargs):  # type: ignore[no-untyped-def]
        seen = _seen(args, kwargs)
        if ((seen | own) & _ELIGIBLE) == 0:
            return call(*args, **kwargs)
        if "dtype" in kwargs:
            return call(*_able(args, seen), **kwargs)
        given, named = _cast(dtype, args, seen), mixed_precision_cast(dtype, kwargs)
        if emulated:
            given, named = _cast(FLOAT32, given, seen), mixed_precision_cast(FLOAT32, named)
            found = cast_found(dtype, call(*given, **named))
        else:
            found = call(*given, **named)
        return cast_found(FLOAT32, found) if widened else found

    return _taking_any(unamp_low)


def low_norm(call: Function, to: Low) -> Function:
    """Return the function that computes a norm low: only the activation becomes low.

    Parameters and statistics are float32.
    """
    dtype, emulated, widened = to

    @unbound
    def unamp_norm(activation, args, kwargs):  # type: ignore[no-untyped-def]
        given = _cast_one(dtype, activation)
        if emulated:
            rest = mixed_precision_cast(FLOAT32, args) if _seen(args) & _LOW else args
            named = mixed_precision_cast(FLOAT32, kwargs)
            found = mixed_precision_cast(dtype, call(_cast_one(FLOAT32, given), *rest, **named))
        else:
            found = call(given, *args, **kwargs)
        return mixed_precision_cast(FLOAT32, found) if widened else found

    return _taking_first(unamp_norm)


def as_first(call: Function, *, emulated: bool) -> Function:
    """Return the function that computes in the dtype of its first argument.

    That is a norm's activation, or the tensor of which items are read.
    """

    @unbound
    def unamp_as_first(given, args, kwargs):  # type: ignore[no-untyped-def]
        if not emulated or (_seen(given) & _LOW) == 0:
            return call(given, *args, **kwargs)
        rest = mixed_precision_cast(FLOAT32, args) if _seen(args) & _LOW else args
        found = call(_cast_one(FLOAT32, given), *rest, **mixed_precision_cast(FLOAT32, kwargs))
        return mixed_precision_cast(given.dtype, found)

    return _taking_first(unamp_as_first)


def with_statistics(call: Function, *, training: bool) -> Function:
    """Return the function of a batch norm that computes with float32 running statistics.

    Low ones are widened, and the updated values are written back: MindSpore itself would update a
    copy of them, and lose it.

    Args:
        training: whether it updates the statistics.
    """

    @unbound
    def unamp_batch_norm(x, scale, bias, mean, variance):  # type: ignore[no-untyped-def]
        if (_seen(mean, variance) & _LOW) == 0:
            return call(x, scale, bias, mean, variance)
        wide_mean, wide_variance = _cast_one(FLOAT32, mean), _cast_one(FLOAT32, variance)
        found = call(x, scale, bias, wide_mean, wide_variance)
        if training:
            assign(mean, mixed_precision_cast(mean.dtype, depend(wide_mean, found)))
            assign(variance, mixed_precision_cast(variance.dtype, depend(wide_variance, found)))
        return found

    return unamp_batch_norm


def converting(dtype: Dtype, *, rounded: bool) -> Function:
    """Return the function that casts the parameters of a layer that is one operation.

    Args:
        rounded: whether they are cast back to float32.
    """

    @unbound
    def unamp_parameter(value):  # type: ignore[no-untyped-def]
        given = mixed_precision_cast(dtype, value)
        return mixed_precision_cast(FLOAT32, given) if rounded else given

    return unamp_parameter


def wide(call: Function) -> Function:
    """Return the function that computes in float32."""

    @unbound
    def unamp_wide(args, kwargs):  # type: ignore[no-untyped-def]
        seen = _seen(args, kwargs)
        if (seen & _LOW) == 0:
            return call(*args, **kwargs)
        if "dtype" in kwargs:
            return call(*_able(args, seen), **kwargs)
        return call(*_cast(FLOAT32, args, seen), **mixed_precision_cast(FLOAT32, kwargs))

    return _taking_any(unamp_wide)


def agreeing(call: Function, *, narrowest: bool, emulated: bool) -> Function:
    """Return the function that computes in the dtype of inputs that agree.

    Where they differ, it computes in float32 or, with `narrowest`, in the low dtype.
    """

    @unbound
    def unamp_agreeing(args, kwargs):  # type: ignore[no-untyped-def]
        seen = _seen(args, kwargs)
        to = _agreed(seen & _ELIGIBLE, narrowest)
        if to is None:
            return call(*args, **kwargs)
        if "dtype" in kwargs:
            return call(*_able(args, seen), **kwargs)
        given, named = _cast(to, args, seen), mixed_precision_cast(to, kwargs)
        if to == FLOAT32:
            return call(*given, **named)
        if emulated:
            found = call(*_cast(FLOAT32, given, seen), **mixed_precision_cast(FLOAT32, named))
            return cast_found(to, found)
        return call(*given, **named)

    return _taking_any(unamp_agreeing)


@unbound
def _agreed(seen, narrowest):  # type: ignore[no-untyped-def]
    if (seen & _LOW) == 0:
        return None
    if seen == _HAS_FLOAT16:
        return _FLOAT16
    if seen == _HAS_BFLOAT16:
        return _BFLOAT16
    if narrowest:
        if seen == (_HAS_FLOAT16 | _HAS_FLOAT32):
            return _FLOAT16
        if seen == (_HAS_BFLOAT16 | _HAS_FLOAT32):
            return _BFLOAT16
    return FLOAT32


def casting_inputs(call: Function, dtype: Dtype) -> Function:
    """Return the function that casts its inputs, as `unamp.custom_fwd` does."""

    @unbound
    def unamp_cast_inputs(*args, **kwargs):  # type: ignore[no-untyped-def]
        return call(*_cast(dtype, args, _seen(args)), **mixed_precision_cast(dtype, kwargs))

    return unamp_cast_inputs


def of_tensors(call: Function, ruled: Function) -> Function:
    """Return the function that computes an operator of two values by its rule.

    Where neither is a tensor, it computes as Python does: tuples can be added and compared, and
    tensors in them keep their dtypes.
    """

    @unbound
    def unamp_operator(value, other):  # type: ignore[no-untyped-def]
        if isinstance(value, Tensor):
            return ruled(value, other)
        if isinstance(other, Tensor):
            return ruled(value, other)
        return call(value, other)

    return unamp_operator


def of_a_tensor(call: Function, ruled: Function) -> Function:
    """Return the function that computes a part, attribute or method of a tensor by its rule.

    For anything but a tensor no rule applies.
    """

    @unbound
    def unamp_part(value, args, kwargs):  # type: ignore[no-untyped-def]
        if isinstance(value, Tensor):
            return ruled(value, *args, **kwargs)
        return call(value, *args, **kwargs)

    return _taking_first(unamp_part)


def in_place(call: Function, ruled: Function) -> Function:
    """Return the function that computes an operator in place.

    The tensor that it changes keeps its dtype, whatever the operator's rule.
    """

    @unbound
    def unamp_in_place(value, other):  # type: ignore[no-untyped-def]
        if not isinstance(value, Tensor):
            return ruled(value, other)
        seen = _seen(value, other)
        if (seen & _LOW) == 0:
            return call(value, other)
        found = call(_cast_one(FLOAT32, value), _cast_one(FLOAT32, other))
        return mixed_precision_cast(value.dtype, found) if _seen(value) & _ELIGIBLE else found

    return unamp_in_place


def indexing(subscript: Function, ruled: Function) -> Function:
    """Return the function that reads items of a tensor.

    Only with tensors or lists among the indices does it follow the rule of an operation.
    """

    @unbound
    def unamp_items(value, index):  # type: ignore[no-untyped-def]
        if isinstance(index, (Tensor, list)):
            return subscript(ruled(value), index)
        if isinstance(index, tuple):
            for each in index:
                if isinstance(each, (Tensor, list)):
                    return subscript(ruled(value), index)
        return subscript(value, index)

    return unamp_items


def setting(call: Function, *, emulated: bool) -> Function:
    """Return the function that sets an item of a tensor, which keeps its dtype.

    A parameter is changed in place.
    """

    @unbound
    def unamp_item_set(value, index, item):  # type: ignore[no-untyped-def]
        if not isinstance(value, Tensor):
            return call(value, index, item)
        if not emulated or (_seen(value) & _HAS_BFLOAT16) == 0:
            return call(value, index, cast_like(item, value))
        found = call(_cast_one(FLOAT32, value), index, _cast_one(FLOAT32, item))
        return mixed_precision_cast(value.dtype, found)

    return unamp_item_set


def changing(call: Function) -> Function:
    """Return the function that changes its first argument.

    It takes its other arguments in the dtype of the first.
    """

    @unbound
    def unamp_changing(value, args, kwargs):  # type: ignore[no-untyped-def]
        if (_seen(args, kwargs) & _ELIGIBLE & ~_seen(value)) == 0:
            return call(value, *args, **kwargs)
        return call(
            value,
            *mixed_precision_cast(value.dtype, args),
            **mixed_precision_cast(value.dtype, kwargs),
        )

    return _taking_first(unamp_changing)


def method(name: str) -> Function:
    """Return the function that calls a method of its first argument."""

    @unbound
    def unamp_method(unamp_first, *args, **kwargs):  # type: ignore[no-untyped-def]
        return getattr(unamp_first, name)(*args, **kwargs)

    return unamp_method
