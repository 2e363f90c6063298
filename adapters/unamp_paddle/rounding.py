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
from collections.abc import Callable
from typing import Any

import paddle

from unamp_paddle.state import FLOAT32, LOW

__all__ = ["follow", "narrow", "nearest", "widen"]

# The functions themselves, not the module's attributes, which a region replaces.
_as_strided, _cast, _scale = paddle._C_ops.as_strided, paddle._C_ops.cast, paddle._C_ops.scale
_slice, _view_dtype = paddle._C_ops.slice, paddle._C_ops.view_dtype
_subtract, _subtract_ = paddle._C_ops.subtract, paddle._C_ops.subtract_
_reshape, _squared_norm = paddle._C_ops.reshape, paddle._C_ops.squared_l2_norm
_is_grad_enabled, _in_dynamic_mode = paddle.is_grad_enabled, paddle.in_dynamic_mode
_BFLOAT16 = LOW[1]

#: With fewer numbers a cast is faster.
_SMALL = 1 << 12
#: So many numbers at a time: fresh memory costs more than the arithmetic on it, unless it is small and used again.
_PIECE = 1 << 16
_SPLIT = 65537.0  # 2**16 + 1: as many bits off as a float32 has more than a bfloat16


def nearest(tensor: Any, low: Any) -> Any:
    """A float32 tensor rounded to `low`, as float32; its gradient is rounded, too."""
    if low is not _BFLOAT16 or not _pays(tensor):
        return _cast(_cast(tensor, low), FLOAT32)
    if tensor.stop_gradient or not _is_grad_enabled():
        return _rounded_or_cast(tensor)
    return _nearest(tensor)


def narrow(tensor: Any, low: Any) -> Any:
    """A float32 tensor rounded to `low`, in that dtype."""
    if low is not _BFLOAT16 or not _pays(tensor):
        return _cast(tensor, low)
    wide: list[Any] = []
    result = _narrow_(tensor, wide) if _is_grad_enabled() and not tensor.stop_gradient else _upper(tensor, wide)
    if wide:
        result._unamp_wide = wide[0]
    return result


def widen(tensor: Any) -> Any:
    """A low tensor as float32: the memory that it is a view of, where it is one."""
    wide = getattr(tensor, "_unamp_wide", None)
    if wide is None or (found := _under(wide, tensor)) is None:
        return _cast(tensor, FLOAT32)
    if tensor.stop_gradient or not _is_grad_enabled():
        return found
    return _widen(tensor, lambda: found)  # a tensor among the arguments would be an input


def follow(tensor: Any, views: Any) -> None:
    """Remember for what may be views of a low tensor where its float32 numbers are."""
    wide = getattr(tensor, "_unamp_wide", None)
    if wide is not None:
        for view in views if isinstance(views, (list, tuple)) else (views,):
            view._unamp_wide = wide


def _pays(tensor: Any) -> bool:
    return type(tensor) is not paddle.pir.Value and math.prod(tensor.shape) >= _SMALL and _in_dynamic_mode()


def _rounded(tensor: Any) -> Any:
    """The numbers of a float32 tensor rounded to bfloat16; None where some are out of range."""
    split = _scale(tensor, _SPLIT, -0.0, True)  # adding +0.0 would lose the sign of -0.0
    size = math.prod(tensor.shape)
    if size <= _PIECE or not tensor.is_contiguous():
        result = _subtract_(split, _subtract(split, tensor))
    else:
        result, flat, ours = split, _reshape(tensor, [size]), _reshape(split, [size])
        for start in range(0, size, _PIECE):
            ends = [min(start + _PIECE, size)]
            piece = _slice(ours, [0], [start], ends, [1], [])
            _subtract_(piece, _subtract(piece, _slice(flat, [0], [start], ends, [1], [])))
    return result if math.isfinite(_squared_norm(result).item()) else None


def _rounded_or_cast(tensor: Any) -> Any:
    rounded = _rounded(tensor)
    return _cast(_cast(tensor, _BFLOAT16), FLOAT32) if rounded is None else rounded


def _upper(tensor: Any, wide: list[Any]) -> Any:
    """A float32 tensor rounded to bfloat16; the float32 numbers that it is a view of go to `wide`."""
    rounded = _rounded(tensor.detach())
    if rounded is None or not rounded.is_contiguous():
        return _cast(tensor, _BFLOAT16)
    wide.append(rounded)
    return _as_strided(_view_dtype(rounded, _BFLOAT16), rounded.shape, [2 * n for n in rounded.strides], 2)


def _under(wide: Any, low: Any) -> Any:
    """The numbers in `wide` whose upper halves are `low`; None where that has, or was given, memory of its own."""
    start, strides = low.data_ptr() - 2 - wide.data_ptr(), low.strides
    if not 0 <= start < 4 * math.prod(wide.shape) or any(n % 2 for n in strides):
        return None
    return _as_strided(wide, low.shape, [n // 2 for n in strides], start)


class _Nearest(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx: Any, tensor: Any) -> Any:
        return _rounded_or_cast(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return nearest(grad, _BFLOAT16)


class _Narrow(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx: Any, tensor: Any, wide: list[Any]) -> Any:
        return _upper(tensor, wide)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return _cast(grad, FLOAT32)


class _Widen(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx: Any, tensor: Any, shared: Callable[[], Any]) -> Any:
        return shared()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return narrow(grad, _BFLOAT16)


def _apply(layer: type) -> Callable[..., Any]:
    """A layer's `apply`, whatever stands in for that of all layers while a region is open."""
    return super(paddle.autograd.PyLayer, layer).apply  # type: ignore[misc, no-any-return]


_nearest, _narrow_, _widen = _apply(_Nearest), _apply(_Narrow), _apply(_Widen)
