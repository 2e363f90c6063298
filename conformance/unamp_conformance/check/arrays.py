"""Input arrays whose low digits tell the precision.

Rounding them to bfloat16 or to float16 changes them visibly.

An array is written as a string, ``"normal 4x8"``: a kind, a shape and, for integers, a bound. It is
made from a seed in NumPy, so it is identical to the bit on every framework.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["carries_precision", "is_spec", "make"]

Generator = np.random.Generator
Shape = tuple[int, ...]


def is_spec(value: object) -> bool:
    """Return whether a value of a case describes an array."""
    return isinstance(value, str) and value.split(" ", 1)[0] in _KINDS and " " in value


def make(spec: str, seed: str, position: int) -> np.ndarray:
    """Return the array for a description and a seed.

    Args:
        spec: for instance ``"normal 4x8"`` or ``"index 6 5"`` (six integers below five).
        seed: any text; the same text gives the same array. Arrays of one call share it.
        position: which argument of the call it is.
    """
    kind, shape_text, *bound = spec.split(" ")
    shape = tuple(int(n) for n in shape_text.split("x"))
    # Operations that compare their arguments need related ones: their kinds share one stream of
    # random numbers.
    stream = seed if kind in _RELATED else f"{seed}/{position}"
    generator = np.random.default_rng(zlib.crc32(stream.encode()))
    made = _KINDS[kind](generator, shape, int(bound[0]) if bound else position)
    return imprint(made, generator) if kind in _IMPRINTED else made


def carries_precision(spec: str) -> bool:
    """Return whether every element of the described array changes when it is rounded."""
    return spec.split(" ", 1)[0] in _CARRYING


def imprint(values: np.ndarray, generator: Generator) -> NDArray[np.float32]:
    """Return float32 values near those given, as far off both low grids as possible.

    They are 0.43 spacings off the bfloat16 grid and 0.37 to 0.5 off the float16 grid. So rounding
    to either changes every element by nearly as much as rounding can, half of them up and half of
    them down.
    """
    bits = values.astype(np.float32).view(np.uint32)
    low = (0b011 << 13) | generator.integers(0x0C00, 0x1000, values.shape, dtype=np.uint32)
    low = np.where(generator.random(values.shape) < 0.5, low, 0x10000 - low).astype(np.uint32)
    return ((bits & np.uint32(0xFFFF0000)) | low).view(np.float32)


def _uniform(low: float, high: float) -> Callable[[Generator, Shape, int], np.ndarray]:
    return lambda g, shape, _: g.uniform(low, high, shape)


def _normal(g: Generator, shape: Shape, _: int) -> np.ndarray:
    # Nothing very near to zero: relative errors there would drown in absolute ones.
    return g.choice([-1.0, 1.0], shape) * g.uniform(0.25, 2.25, shape)


def _spd(g: Generator, shape: Shape, _: int) -> NDArray[np.float64]:
    a = g.uniform(-0.5, 0.5, shape)
    return a + np.swapaxes(a, -1, -2) + np.diag(np.arange(2.0, 2.0 + shape[-1]))


def _symmetric(g: Generator, shape: Shape, _: int) -> np.ndarray:
    lower = np.tril(imprint(_spd(g, shape, 0), g))
    return lower + np.swapaxes(np.tril(lower, -1), -1, -2)


def _matrix(g: Generator, shape: Shape, _: int) -> np.ndarray:
    rows, columns = shape[-2:]
    return g.uniform(-0.5, 0.5, shape) + np.eye(rows, columns) * 2.5


def _lower(g: Generator, shape: Shape, _: int) -> np.ndarray:
    return np.tril(imprint(_matrix(g, shape, 0), g))


def _pair(g: Generator, shape: Shape, position: int) -> np.ndarray:
    """Return one of a pair that low precision cannot tell apart.

    The second differs by so little that bfloat16, or both low precisions, round it to the first.
    """
    base = _on_bfloat16_grid(g, shape)
    return (base * (1.0 + position * g.choice([-1.0, 1.0], shape) * _hair(g, shape))).astype(
        np.float32
    )


def _tied(g: Generator, shape: Shape, _: int) -> np.ndarray:
    """Return values that low precision makes equal along the last axis, in random order."""
    base = _on_bfloat16_grid(g, (*shape[:-1], 1))
    steps = g.permuted(np.broadcast_to(np.arange(shape[-1]), shape), axis=-1)
    return (base * (1.0 + steps * _hair(g, (*shape[:-1], 1)))).astype(np.float32)


def _on_bfloat16_grid(g: Generator, shape: Shape) -> NDArray[np.float64]:
    return 1.0 + g.integers(0, 64, shape) / 64.0


def _hair(g: Generator, shape: Shape) -> NDArray[np.float64]:
    # 2**-10 of a number between 1 and 2 is visible in float16 and not in bfloat16; 2**-15 in
    # neither.
    return np.where(g.random(shape) < 0.5, 2.0**-10, 2.0**-15)


def _near_integer(offset: float, side: float) -> Callable[[Generator, Shape, int], np.ndarray]:
    def made(g: Generator, shape: Shape, _: int) -> np.ndarray:
        # Odd integers from 5 on: there 2**-8 is visible in float16 and not in bfloat16, 2**-13 in
        # neither, and a half goes up.
        whole = g.choice([5.0, 7.0], shape)
        return (whole + offset + side * np.where(g.random(shape) < 0.5, 2.0**-8, 2.0**-13)).astype(
            np.float32
        )

    return made


def _ladder(g: Generator, shape: Shape, _: int) -> np.ndarray:
    return (1.0 + np.arange(math.prod(shape)) / 16.0).reshape(shape).astype(np.float32)


def _rung(g: Generator, shape: Shape, _: int) -> np.ndarray:
    steps = g.integers(0, 8, shape) / 16.0
    return ((1.0 + steps) * (1.0 + _hair(g, shape))).astype(np.float32)


def _tiny(g: Generator, shape: Shape, _: int) -> np.ndarray:
    """Return numbers of which some vanish in float16, some in both low precisions.

    The latter where float32 has subnormal numbers.
    """
    return g.choice(np.array([1.5, 1e-8, 2e-41, -1e-8, -2e-41], np.float32), shape)


def _edge(g: Generator, shape: Shape, _: int) -> np.ndarray:
    """Return numbers of which some overflow in float16, some in both low precisions."""
    return g.choice(np.array([1.5, 7e4, 3.4e38, -7e4, -3.4e38], np.float32), shape)


def _boxes(g: Generator, shape: Shape, _: int) -> np.ndarray:
    """Return corners (left, top, right, bottom) within six pixels."""
    return np.concatenate(
        [g.uniform(0.2, 1.6, (shape[0], 2)), g.uniform(3.2, 5.6, (shape[0], 2))], axis=1
    )


def _index(g: Generator, shape: Shape, bound: int) -> np.ndarray:
    return g.integers(0, bound, shape)


def _distinct_index(g: Generator, shape: Shape, bound: int) -> np.ndarray:
    rows = [g.permutation(bound)[: shape[-1]] for _ in range(math.prod(shape[:-1]))]
    return np.array(rows).reshape(shape)


def _logprob(g: Generator, shape: Shape, _: int) -> np.ndarray:
    scores = g.uniform(-1.0, 1.0, shape)
    total: NDArray[np.float64] = np.exp(scores).sum(-1, keepdims=True)
    return scores - np.log(total)


def _pooled(g: Generator, shape: Shape, _: int) -> np.ndarray:
    """Return indices for un-pooling by two: where each value came from."""
    axes = [np.arange(n) * 2 for n in shape[2:]]
    flat = np.zeros((), np.int64)
    for n, axis in zip(shape[2:], np.meshgrid(*axes, indexing="ij"), strict=True):
        flat = flat * (2 * n) + axis
    return np.broadcast_to(flat, shape).copy()


_KINDS: dict[str, Callable[[Generator, Shape, int], np.ndarray]] = {
    "normal": _normal,
    "positive": _uniform(0.4, 3.5),
    "unit": _uniform(0.1, 0.9),
    "open": _uniform(-0.9, 0.9),
    "small": _uniform(-0.4, 0.4),
    "above": _uniform(1.2, 3.5),
    "spd": _spd,
    "symmetric": _symmetric,
    "matrix": _matrix,
    "lower": _lower,
    "logprob": _logprob,
    "pair": _pair,
    "tied": _tied,
    "ladder": _ladder,
    "rung": _rung,
    "below_integer": _near_integer(0.0, -1.0),
    "above_integer": _near_integer(0.0, 1.0),
    "below_half": _near_integer(0.5, -1.0),
    "tiny": _tiny,
    "edge": _edge,
    "boxes": _boxes,
    "ones": lambda g, shape, _: np.ones(shape, np.float32),
    "samples": lambda g, shape, _: g.uniform(0.1, 0.9, shape).astype(np.float32),
    "sign": lambda g, shape, _: g.choice(np.array([-1.0, 1.0], np.float32), shape),
    "mask01": lambda g, shape, _: g.choice(np.array([0.0, 1.0], np.float32), shape),
    "scales": lambda g, shape, _: np.full(shape, 2.0**-14, np.float32),
    "mask": lambda g, shape, _: g.random(shape) < 0.5,
    "index": _index,
    "distinct_index": _distinct_index,
    "target": lambda g, shape, bound: 1 + g.integers(0, bound - 1, shape),
    "lengths": lambda g, shape, bound: np.full(shape, bound),
    "pivots": lambda g, shape, _: np.arange(1, shape[0] + 1, dtype=np.int32),
    "zero_points": lambda g, shape, _: np.zeros(shape, np.int32),
    "pooled": _pooled,
    "complex": lambda g, shape, _: (g.normal(size=shape) + 1j * g.normal(size=shape)).astype(
        np.complex64
    ),
}
_IMPRINTED = frozenset(
    {"normal", "positive", "unit", "open", "small", "above", "spd", "matrix", "logprob", "boxes"}
)
# operations on boxes often have no gradient for them
_CARRYING = (_IMPRINTED | {"lower", "symmetric"}) - {"boxes"}
_RELATED = frozenset({"pair"})
