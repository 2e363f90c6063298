"""Tensors rounded to a low dtype, with their gradients, in as few passes over memory as there can be.

A large low tensor that an emulated operation results in knows float32 numbers that it comes to, and whoever is to compute with
it in float32 takes those. A bfloat16 is the upper half of a float32, so the tensor is a view of those halves and no conversion
is needed at all. A float16 tensor has memory of its own, and a change of it in place makes the numbers worthless.

Such a tensor is like any other, but for a bfloat16's strides. Operations, gradients, hooks and changes in place go through the
low tensor. How numbers are rounded is the matter of `arithmetic`; where that does not pay there are only casts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import paddle

from unamp_paddle.arithmetic import (
    as_it_is,
    both,
    certainly_rounded,
    dense,
    has_loops,
    in_place,
    narrowed,
    pays,
    rounded,
    widened,
)
from unamp_paddle.state import DTYPES, FLOAT32, Parameter, dtype_of, is_grad_enabled, thread

__all__ = ["Way", "as_it_is", "follow", "in_place", "narrow", "nearest", "rounded", "widen"]

# The functions themselves, not the module's attributes, which a region replaces.
_as_strided, _cast, _scale = paddle._C_ops.as_strided, paddle._C_ops.cast, paddle._C_ops.scale
_view_dtype = paddle._C_ops.view_dtype
_BFLOAT16 = DTYPES["bfloat16"]

#: Its place among the weights, whose keys are ids.
_LAST = 0


class Way:
    """How a gradient will be rounded: it may turn out that somebody else needs the memory that it is in.

    Attributes:
        how: `rounded`; `in_place` where the gradient is memory of its own; `as_it_is` where it is rounded already.
    """

    __slots__ = ("how",)

    def __init__(self, how: Callable[[Any, Any], Any] = rounded) -> None:
        self.how = how


_FRESH = Way()


def nearest(tensor: Any, low: Any, way: Way = _FRESH) -> Any:
    """Return a float32 tensor rounded to `low`, as float32; its gradient is rounded, too."""
    if not pays(tensor, low):
        return _cast(_cast(tensor, low), FLOAT32)
    # A parameter is kept, and would take the place of the input that queries, keys and values come from.
    wide = certainly_rounded(tensor.detach(), low) if type(tensor) is Parameter else _remembered(tensor, low)
    return wide if tensor.stop_gradient or not is_grad_enabled() else _nearest(tensor, wide.detach, low, way)


def narrow(tensor: Any, low: Any, how: Callable[[Any, Any], Any] | None = None) -> Any:
    """Return a float32 tensor rounded to `low`, in that dtype.

    Args:
        tensor: the tensor.
        low: the dtype.
        how: `in_place` for a tensor that nobody else has, `as_it_is` for one that is rounded already.
    """
    if not pays(tensor, low):
        return _cast(tensor, low)
    shared = _Shared(low, how or rounded)
    result = _lower(tensor, shared) if tensor.stop_gradient or not is_grad_enabled() else _narrow(tensor, shared)
    if shared.numbers is not None:
        result._unamp_shared = shared
    return result


def widen(tensor: Any, way: Way = _FRESH, *, kept: bool = False, copied: bool = False) -> Any:
    """Return a low tensor as float32: the numbers that it knows, where it does.

    Args:
        tensor: the tensor.
        way: how its gradient is rounded.
        kept: whether what backward keeps must be safe from changes of the tensor in place.
        copied: whether the result must be nobody else's memory.
    """
    low, shared = dtype_of(tensor), getattr(tensor, "_unamp_shared", None)
    found = None if shared is None else shared.numbers.under(tensor)
    if found is None:
        if not pays(tensor, low):
            return _cast(tensor, FLOAT32)
        found = widened(tensor.detach(), low)
    elif not found.is_contiguous():
        found = dense(found)  # the operation would copy it, and its gradient once more
    elif copied or (kept and low is _BFLOAT16):
        found = _scale(found, 1.0, -0.0, True)
    if tensor.stop_gradient or not is_grad_enabled():
        return found
    return _widen(tensor, found.detach, low, shared, way)


def follow(tensor: Any, views: Any) -> None:
    """Remember for what may be views of a low tensor where its float32 numbers are."""
    shared = getattr(tensor, "_unamp_shared", None)
    if shared is not None:
        for view in views if isinstance(views, (list, tuple)) else (views,):
            view._unamp_shared = shared


class _Numbers:
    """The float32 numbers that a low tensor, and its views, come to.

    Attributes:
        wide: the numbers.
        start, shape, strides: where in memory the low tensor is.
        version: how often it had been changed in place; None for a bfloat16 tensor that is the numbers' upper halves.
    """

    __slots__ = ("shape", "start", "strides", "version", "wide")

    def __init__(self, wide: Any, low: Any, *, halves: bool) -> None:
        self.wide = wide
        self.start, self.shape, self.strides = low.data_ptr(), low.shape, low.strides
        self.version = None if halves else low._inplace_version()

    def under(self, low: Any) -> Any:
        """Return the numbers that a view comes to; None where it was changed, or has, or was given, memory of its own."""
        wide, shape, strides = self.wide, low.shape, low.strides
        start = low.data_ptr() - self.start
        if self.version is not None and low._inplace_version() != self.version:
            return None
        if not start and shape == self.shape and strides == self.strides:
            return wide.detach()
        if self.version is not None:
            start *= 2
        elif any(n % 2 for n in strides):
            return None
        else:
            strides = [n // 2 for n in strides]
        return _as_strided(wide, shape, strides, start) if 0 <= start < 4 * math.prod(wide.shape) else None


class _Shared:
    """The things that a low tensor and its views have in common.

    Attributes:
        low: their dtype.
        how: how the float32 numbers that they come from are rounded.
        numbers: the float32 numbers that they come to.
        gradients: likewise, for bfloat16 gradients that are on their way back to the low tensor; none with compiled loops.
    """

    __slots__ = ("gradients", "how", "low", "numbers")

    def __init__(self, low: Any, how: Callable[[Any, Any], Any]) -> None:
        self.low = low
        self.how = how
        self.numbers: _Numbers | None = None
        self.gradients: list[_Numbers] = []


def _remembered(tensor: Any, low: Any) -> Any:
    """Return a float32 tensor rounded, the last one from memory: queries, keys and values come from one input."""
    kept, version = thread.weights, tensor._inplace_version()
    last = None if kept is None else kept.get(_LAST)
    if last is None or last[0] is not tensor or last[1] != version or last[2] is not low:
        last = (tensor, version, low, certainly_rounded(tensor.detach(), low))
        if kept is not None:
            kept[_LAST] = last
    return last[3].detach()


def _lower(tensor: Any, shared: _Shared) -> Any:
    """Return a float32 tensor in the low dtype, and the numbers that it comes to."""
    tensor, low = tensor.detach(), shared.low
    if low is not _BFLOAT16:
        result, wide = both(tensor, low, shared.how)
        if wide.is_contiguous():
            shared.numbers = _Numbers(wide, result, halves=False)
        return result
    wide = shared.how(tensor, low)
    if wide is None or not wide.is_contiguous():
        return _cast(tensor, low)
    result = _as_strided(_view_dtype(wide, low), wide.shape, [2 * n for n in wide.strides], 2)
    shared.numbers = _Numbers(wide, result, halves=True)
    return result


class _Nearest(paddle.autograd.PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, tensor: Any, wide: Callable[[], Any], low: Any, way: Way) -> Any:
        ctx.low, ctx.way = low, way
        return wide()  # a tensor among the arguments would be an input

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        if is_grad_enabled():
            return nearest(grad, ctx.low)
        return certainly_rounded(grad, ctx.low, ctx.way.how if pays(grad, ctx.low) else None)


class _Narrow(paddle.autograd.PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, tensor: Any, shared: _Shared) -> Any:
        ctx.shared = shared
        return _lower(tensor, shared)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        # The sum of several gradients may have memory of its own, and whatever is recorded must be a cast.
        gradients, ctx.shared.gradients = ctx.shared.gradients, []
        if is_grad_enabled():
            return _cast(grad, FLOAT32)
        for numbers in gradients:
            if (found := numbers.under(grad)) is not None:
                return found
        return widened(grad, ctx.shared.low)


class _Widen(paddle.autograd.PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, tensor: Any, wide: Callable[[], Any], low: Any, shared: _Shared | None, way: Way) -> Any:
        ctx.low, ctx.shared, ctx.way = low, shared, way
        return wide()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        if (ctx.low is not _BFLOAT16 or has_loops()) and not is_grad_enabled():
            # Gradients are added up where they are, unseen: nothing that is known about one would hold for long. (Of a
            # bfloat16's it would, but Paddle's operations are slow with its strides, and the loops are fast.)
            return narrowed(grad, ctx.low)
        how = ctx.way.how
        result = narrow(grad, ctx.low, rounded if how is in_place and is_grad_enabled() else how)
        if ctx.shared is not None and (own := getattr(result, "_unamp_shared", None)) is not None:
            ctx.shared.gradients.append(own.numbers)
        return result


def _apply(layer: type) -> Callable[..., Any]:
    """Return a layer's `apply`, whatever stands in for that of all layers while a region is open."""
    return super(paddle.autograd.PyLayer, layer).apply  # type: ignore[no-any-return]


_nearest, _narrow, _widen = _apply(_Nearest), _apply(_Narrow), _apply(_Widen)
