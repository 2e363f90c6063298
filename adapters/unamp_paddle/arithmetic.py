"""Rounding to a low dtype on the CPU, without the conversions that Paddle computes number by number.

To emulate an operation is to round: its inputs, its result, and their gradients. Paddle's casts between float32 and a low
dtype take several times as long as an addition, which runs in vector instructions, and would take as long as the operation
itself. Where `compiled` is built, its loops do the same in a thirtieth of the time.

Elsewhere a float32 is rounded to a bfloat16 by one multiplication and two subtractions (Veltkamp's splitting,
T. J. Dekker, "A floating-point technique for extending the available precision", 1971). That does for all but numbers that the
multiplication takes out of range: infinities, NaN, and what is larger than 1e19. Below float32's smallest normal number,
1e-38, its result may differ from a cast by one part in 2**133. To float16 tensors are cast.

Nothing here is recorded for a backward pass, and tensors are on the CPU.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from typing import Any

import paddle

from unamp_paddle.compiled import loops
from unamp_paddle.state import CPU_ONLY, DTYPES, FLOAT32, LOW, NAMES, Value

__all__ = [
    "FEWEST",
    "as_it_is",
    "both",
    "certainly_rounded",
    "dense",
    "has_loops",
    "in_place",
    "narrowed",
    "pays",
    "rounded",
    "widened",
]

# The functions themselves, not the module's attributes, which a region replaces.
_cast, _scale = paddle._C_ops.cast, paddle._C_ops.scale
_empty, _empty_like = paddle._C_ops.empty, paddle._C_ops.empty_like
_scale_, _slice = paddle._C_ops.scale_, paddle._C_ops.slice
_subtract, _subtract_ = paddle._C_ops.subtract, paddle._C_ops.subtract_
_reshape, _squared_norm = paddle._C_ops.reshape, paddle._C_ops.squared_l2_norm
_in_dynamic_mode = paddle.in_dynamic_mode
_BFLOAT16 = DTYPES["bfloat16"]
_CPU = paddle.CPUPlace()

#: The loops that round in float32, narrow and widen, for float16 and for bfloat16; none where they are not built. (To look
#: something up by a dtype takes longer than all that is asked of a tensor.)
_LOOPS = tuple(tuple(loops(f"{does}_{NAMES[low]}") for does in ("round", "narrow", "widen")) for low in LOW) if loops else ()

#: The loop that puts the numbers of a strided tensor one after the other.
_GATHER = loops("gather") if loops else None
#: The most dimensions that it takes; and for each number of them, an array of sizes.
_MOST_DIMENSIONS = 9
_SIZES = tuple(ctypes.c_int64 * rank for rank in range(_MOST_DIMENSIONS + 1))

#: With fewer numbers a cast is faster; likewise.
FEWEST = (1 << 11, 1 << 11) if loops else (math.inf, 1 << 14)
#: So many numbers at a time: fresh memory costs more than the arithmetic on it, unless it is small and used again.
_PIECE = 1 << 16
_SPLIT = 65537.0  # 2**16 + 1: as many bits off as a float32 has more than a bfloat16


def pays(tensor: Any, low: Any) -> bool:
    """Return whether a tensor is rounded to a low dtype, or widened from it, faster here than by Paddle's casts."""
    return (
        type(tensor) is not Value
        and math.prod(tensor.shape) >= FEWEST[low is _BFLOAT16]
        and tensor.is_dense()
        and (CPU_ONLY or tensor.place.is_cpu_place())
        and _in_dynamic_mode()
    )


def has_loops() -> bool:
    """Return whether rounding is done by the compiled loops."""
    return bool(_LOOPS)


def as_it_is(tensor: Any, low: Any) -> Any:
    """Return a tensor that needs no rounding."""
    return tensor


def in_place(tensor: Any, low: Any) -> Any:
    """Round a float32 tensor to `low` in its own memory, and return it; None, and no change, where numbers are out of range."""
    if not tensor.is_contiguous():
        return rounded(tensor, low)
    if _LOOPS:
        _run(_LOOPS[low is _BFLOAT16][0], tensor, tensor)
        return tensor
    if not math.isfinite(_squared_norm(tensor).item()):
        return None
    for piece in _pieces(tensor):
        numbers = _scale(piece, 1.0, -0.0, True)
        _scale_(piece, _SPLIT, -0.0, True)
        _subtract_(piece, _subtract(piece, numbers))
    return tensor


def rounded(tensor: Any, low: Any) -> Any:
    """Return the numbers of a float32 tensor rounded to `low`; None where some are out of range."""
    tensor = dense(tensor)
    if _LOOPS:
        return _run(_LOOPS[low is _BFLOAT16][0], tensor, _empty_like(tensor, FLOAT32, _CPU))
    split = _scale(tensor, _SPLIT, -0.0, True)  # adding +0.0 would lose the sign of -0.0
    for numbers, piece in zip(_pieces(tensor), _pieces(split), strict=True):
        _subtract_(piece, _subtract(piece, numbers))
        if not math.isfinite(_squared_norm(piece).item()):
            return None
    return split


def both(tensor: Any, low: Any, how: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    """Return a float32 tensor in `low`, with memory of its own, and the numbers that it comes to, rounded as `how` says."""
    result = narrowed(tensor, low)
    if how is as_it_is or not _LOOPS:
        return result, how(tensor, low)
    own = how is in_place and tensor.is_contiguous()
    return result, _run(_LOOPS[low is _BFLOAT16][2], result, tensor if own else _empty_like(tensor, FLOAT32, _CPU))


def certainly_rounded(tensor: Any, low: Any, how: Callable[[Any, Any], Any] | None = rounded) -> Any:
    """Return a float32 tensor rounded as `how` says, whatever its numbers are; by casts where that is None."""
    found = None if how is None else how(tensor, low)
    return _cast(_cast(tensor, low), FLOAT32) if found is None else found


def narrowed(tensor: Any, low: Any, into: Any = None) -> Any:
    """Return a float32 tensor in `low`; where there are loops, in a tensor of that dtype that is given for it."""
    if not _LOOPS or not tensor.is_dense():
        return _cast(tensor, low)
    tensor = dense(tensor)
    return _run(_LOOPS[low is _BFLOAT16][1], tensor, _empty_like(tensor, low, _CPU) if into is None else into)


def widened(tensor: Any, low: Any) -> Any:
    """Return a low tensor in float32."""
    if not _LOOPS or not tensor.is_dense():
        return _cast(tensor, FLOAT32)
    tensor = dense(tensor)
    return _run(_LOOPS[low is _BFLOAT16][2], tensor, _empty_like(tensor, FLOAT32, _CPU))


def dense(tensor: Any) -> Any:
    """Return a tensor whose numbers are one after the other in memory: itself where they are.

    Paddle's own copy of a strided tensor works out the place of each number by itself, and takes as long as a small operation.
    """
    if tensor.is_contiguous():
        return tensor
    shape, strides = tensor.shape, tensor.strides
    rank = len(shape)
    if _GATHER is None or rank > _MOST_DIMENSIONS:
        return tensor.contiguous()
    result = _empty(shape, tensor.dtype, _CPU)
    sizes = _SIZES[rank]
    _GATHER(tensor.data_ptr(), result.data_ptr(), tensor.element_size(), rank, sizes(*shape), sizes(*strides))
    return result


def _run(loop: Any, source: Any, target: Any) -> Any:
    loop(source.data_ptr(), target.data_ptr(), math.prod(target.shape))
    return target


def _pieces(tensor: Any) -> Iterator[Any]:
    size = math.prod(tensor.shape)
    if size <= _PIECE:
        yield tensor
        return
    flat = _reshape(tensor, [size])
    for start in range(0, size, _PIECE):
        yield _slice(flat, [0], [start], [min(start + _PIECE, size)], [1], [])
