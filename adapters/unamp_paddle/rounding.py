"""Rounding to bfloat16 on the CPU, without the conversions that Paddle computes number by number.

To emulate an operation is to round: its inputs, its result, and their gradients. Paddle's casts between float32 and a low
dtype take several times as long as an addition, which runs in vector instructions, and would take as long as the operation
itself. A float32 is rounded to a bfloat16 by one multiplication and two subtractions (Veltkamp's splitting,
T. J. Dekker, "A floating-point technique for extending the available precision", 1971). The result has a bfloat16 in the
upper half of each number: a bfloat16 tensor that is a view of those halves needs no conversion at all, and whoever is to
compute with it in float32 takes the memory as it is.

Such a tensor is like any other, but for its strides. Operations, gradients, hooks and changes in place go through the
bfloat16 tensor; only the bits below are shared.

Small tensors are cast, and so are those with numbers that the multiplication takes out of range: infinities, NaN, and what
is larger than 1e19. Below float32's smallest normal number, 1e-38, a result may differ from a cast by one part in 2**133.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import paddle

from unamp_paddle.state import FLOAT32, LOW, Value, thread

__all__ = ["as_it_is", "follow", "in_place", "narrow", "nearest", "widen"]

# The functions themselves, not the module's attributes, which a region replaces.
_as_strided, _cast, _scale = paddle._C_ops.as_strided, paddle._C_ops.cast, paddle._C_ops.scale
_scale_, _slice, _view_dtype = paddle._C_ops.scale_, paddle._C_ops.slice, paddle._C_ops.view_dtype
_subtract, _subtract_ = paddle._C_ops.subtract, paddle._C_ops.subtract_
_reshape, _squared_norm = paddle._C_ops.reshape, paddle._C_ops.squared_l2_norm
_is_grad_enabled, _in_dynamic_mode = paddle.is_grad_enabled, paddle.in_dynamic_mode
_BFLOAT16 = LOW[1]

#: With fewer numbers a cast is faster.
_SMALL = 1 << 14
#: So many numbers at a time: fresh memory costs more than the arithmetic on it, unless it is small and used again.
_PIECE = 1 << 16
#: Its place among the weights, whose keys are ids.
_LAST = 0
_SPLIT = 65537.0  # 2**16 + 1: as many bits off as a float32 has more than a bfloat16


def nearest(tensor: Any, low: Any) -> Any:
    """A float32 tensor rounded to `low`, as float32; its gradient is rounded, too."""
    if low is not _BFLOAT16 or not _pays(tensor):
        return _cast(_cast(tensor, low), FLOAT32)
    wide = _remembered(tensor)
    return wide if tensor.stop_gradient or not _is_grad_enabled() else _nearest(tensor, lambda: wide)


def narrow(tensor: Any, low: Any, rounded: Callable[[Any], Any] | None = None) -> Any:
    """A float32 tensor rounded to `low`, in that dtype.

    Args:
        tensor: the tensor.
        low: the dtype.
        rounded: `in_place` for a tensor that nobody else has, `as_it_is` for one that is rounded already.
    """
    if low is not _BFLOAT16 or not _pays(tensor):
        return _cast(tensor, low)
    shared = _Shared(rounded or _rounded)
    result = _narrow_(tensor, shared) if _is_grad_enabled() and not tensor.stop_gradient else _upper(tensor, shared)
    if shared.wide is not None:
        result._unamp_shared = shared
    return result


def widen(tensor: Any, *, copied: bool = False, chosen: bool = False) -> Any:
    """A low tensor as float32: the memory that it is a view of, where it is one.

    Args:
        tensor: the tensor.
        copied: whether to give memory of its own, so that what backward keeps is safe from changes of the tensor in place.
        chosen: whether its gradient will need no rounding, because it comes from a choice among numbers that are rounded.
    """
    shared = getattr(tensor, "_unamp_shared", None)
    if shared is None or (found := _under(shared.wide, tensor)) is None:
        return _cast(tensor, FLOAT32)
    if copied:
        found = _scale(found, 1.0, -0.0, True)
    if tensor.stop_gradient or not _is_grad_enabled():
        return found
    return _widen(tensor, lambda: found, shared, chosen)


def follow(tensor: Any, views: Any) -> None:
    """Remember for what may be views of a low tensor where its float32 numbers are."""
    shared = getattr(tensor, "_unamp_shared", None)
    if shared is not None:
        for view in views if isinstance(views, (list, tuple)) else (views,):
            view._unamp_shared = shared


class _Shared:
    """What a low tensor and its views have in common.

    Attributes:
        rounded: how the float32 numbers that they come from are rounded.
        wide: the float32 numbers whose upper halves they are.
        gradients: likewise, for gradients that are on their way back to the low tensor.
    """

    __slots__ = ("gradients", "rounded", "wide")

    def __init__(self, rounded: Callable[[Any], Any]) -> None:
        self.rounded = rounded
        self.wide: Any = None
        self.gradients: list[Any] = []


def _pays(tensor: Any) -> bool:
    return type(tensor) is not Value and math.prod(tensor.shape) >= _SMALL and _in_dynamic_mode()


def as_it_is(tensor: Any) -> Any:
    """A tensor that needs no rounding."""
    return tensor


def in_place(tensor: Any) -> Any:
    """A float32 tensor rounded to bfloat16, in its own memory; None, and nothing done, where numbers are out of range."""
    if not tensor.is_contiguous():
        return _rounded(tensor)
    if not math.isfinite(_squared_norm(tensor).item()):
        return None
    for piece in _pieces(tensor):
        numbers = _scale(piece, 1.0, -0.0, True)
        _scale_(piece, _SPLIT, -0.0, True)
        _subtract_(piece, _subtract(piece, numbers))
    return tensor


def _rounded(tensor: Any) -> Any:
    """The numbers of a float32 tensor rounded to bfloat16; None where some are out of range."""
    tensor = tensor.contiguous()
    split = _scale(tensor, _SPLIT, -0.0, True)  # adding +0.0 would lose the sign of -0.0
    for numbers, piece in zip(_pieces(tensor), _pieces(split), strict=True):
        _subtract_(piece, _subtract(piece, numbers))
        if not math.isfinite(_squared_norm(piece).item()):
            return None
    return split


def _pieces(tensor: Any) -> Iterator[Any]:
    size = math.prod(tensor.shape)
    if size <= _PIECE:
        yield tensor
        return
    flat = _reshape(tensor, [size])
    for start in range(0, size, _PIECE):
        yield _slice(flat, [0], [start], [min(start + _PIECE, size)], [1], [])


def _remembered(tensor: Any) -> Any:
    """A float32 tensor rounded to bfloat16. The last one is remembered: queries, keys and values come from one input."""
    kept, version = thread.weights, tensor.inplace_version
    last = None if kept is None else kept.get(_LAST)
    if last is None or last[0] is not tensor or last[1] != version:
        last = (tensor, version, _BFLOAT16, _rounded_or_cast(tensor.detach()))
        if kept is not None:
            kept[_LAST] = last
    return last[3].detach()


def _rounded_or_cast(tensor: Any) -> Any:
    rounded = _rounded(tensor)
    return _cast(_cast(tensor, _BFLOAT16), FLOAT32) if rounded is None else rounded


def _upper(tensor: Any, shared: _Shared) -> Any:
    """A float32 tensor rounded to bfloat16, as a view of float32 numbers."""
    wide = shared.rounded(tensor.detach())
    if wide is None or not wide.is_contiguous():
        return _cast(tensor, _BFLOAT16)
    shared.wide = wide
    return _as_strided(_view_dtype(wide, _BFLOAT16), wide.shape, [2 * n for n in wide.strides], 2)


def _under(wide: Any, low: Any) -> Any:
    """The numbers in `wide` whose upper halves are `low`; None where that has, or was given, memory of its own."""
    start, strides = low.data_ptr() - 2 - wide.data_ptr(), low.strides
    if not 0 <= start < 4 * math.prod(wide.shape) or any(n % 2 for n in strides):
        return None
    return _as_strided(wide, low.shape, [n // 2 for n in strides], start)


class _Nearest(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx: Any, tensor: Any, wide: Callable[[], Any]) -> Any:
        return wide()  # a tensor among the arguments would be an input

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return nearest(grad, _BFLOAT16) if _is_grad_enabled() else _rounded_or_cast(grad)


class _Narrow(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx: Any, tensor: Any, shared: _Shared) -> Any:
        ctx.shared = shared
        return _upper(tensor, shared)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        # The sum of several gradients may have memory of its own, and whatever is recorded must be a cast.
        gradients, ctx.shared.gradients = ctx.shared.gradients, []
        if not _is_grad_enabled():
            for wide in gradients:
                if (found := _under(wide, grad)) is not None:
                    return found
        return _cast(grad, FLOAT32)


class _Widen(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx: Any, tensor: Any, wide: Callable[[], Any], shared: _Shared, chosen: bool) -> Any:
        ctx.shared, ctx.rounded = shared, as_it_is if chosen else None
        return wide()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        low = narrow(grad, _BFLOAT16, ctx.rounded)
        if (own := getattr(low, "_unamp_shared", None)) is not None:
            ctx.shared.gradients.append(own.wide)
        return low


def _apply(layer: type) -> Callable[..., Any]:
    """A layer's `apply`, whatever stands in for that of all layers while a region is open."""
    return super(paddle.autograd.PyLayer, layer).apply  # type: ignore[misc, no-any-return]


_nearest, _narrow_, _widen = _apply(_Nearest), _apply(_Narrow), _apply(_Widen)
