"""Precisions as grids of numbers: rounding to them, and telling whether values lie on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

__all__ = ["UNIT_ROUNDOFF", "Low", "cast", "on_grid", "round_to", "spacing"]

#: The largest relative error of rounding to nearest.
UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}

_TYPES = {"float64": np.float64, "float32": np.float32}
_SMALLEST_EXPONENT = {"float32": -126, "float16": -14, "bfloat16": -126}


class Low(NamedTuple):
    """Values on the grid of a low dtype, for a tensor in it: NumPy has no bfloat16."""

    values: np.ndarray
    dtype: str


def cast(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return a NumPy array in float32 or float64."""
    with np.errstate(over="ignore"):
        return values.astype(_TYPES[dtype])


def round_to(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return values rounded to a precision's grid (ties to even), in their own dtype.

    Complex numbers are rounded part by part.
    """
    if np.iscomplexobj(values):
        return round_to(values.real, dtype) + 1j * round_to(values.imag, dtype)
    # Through float32, as frameworks do: their low tensors are made from float32 ones.
    with np.errstate(over="ignore"):
        return _ROUNDED[dtype](values.astype(np.float32)).astype(values.dtype)


def _to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Return float32 numbers rounded to their upper 16 bits, ties to even."""
    bits = values.view(np.uint32)
    # a half goes to the even neighbour
    upward = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = ((bits + upward) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(values), values, rounded)


_ROUNDED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "float32": lambda values: values,
    "float16": lambda values: values.astype(np.float16),
    "bfloat16": _to_bfloat16,
}


def on_grid(values: np.ndarray, dtype: str) -> bool:
    """Return whether every finite value is exactly representable."""
    values = values[np.isfinite(values)]
    return bool(np.all(round_to(values, dtype) == values))


def spacing(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return the distance between neighbouring numbers of a precision at the given magnitudes."""
    _, exponents = np.frexp(np.abs(values))
    digits = -int(np.log2(UNIT_ROUNDOFF[dtype]))
    apart: np.ndarray = np.ldexp(
        1.0, np.maximum(exponents - 1, _SMALLEST_EXPONENT[dtype]) - digits + 1
    )
    return apart
