"""Precisions as grids of numbers: rounding to them, and telling whether values lie on them."""

from __future__ import annotations

import ml_dtypes
import numpy as np

__all__ = ["UNIT_ROUNDOFF", "cast", "on_grid", "round_to", "spacing"]

#: The largest relative error of rounding to nearest.
UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}

_TYPES = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
_SMALLEST_EXPONENT = {"float32": -126, "float16": -14, "bfloat16": -126}


def cast(values: np.ndarray, dtype: str) -> np.ndarray:
    """A NumPy array in another precision (``"bfloat16"`` as ml_dtypes' type)."""
    with np.errstate(over="ignore"):
        return values.astype(_TYPES[dtype])


def round_to(values: np.ndarray, dtype: str) -> np.ndarray:
    """Values rounded to a precision's grid, kept in their own dtype. Complex numbers part by part."""
    if np.iscomplexobj(values):
        return round_to(values.real, dtype) + 1j * round_to(values.imag, dtype)
    # Through float32, as frameworks do: their low tensors are made from float32 ones.
    with np.errstate(over="ignore"):
        return values.astype(np.float32).astype(_TYPES[dtype]).astype(values.dtype)


def on_grid(values: np.ndarray, dtype: str) -> bool:
    """Whether every finite value is exactly representable."""
    values = values[np.isfinite(values)]
    return bool(np.all(round_to(values, dtype) == values))


def spacing(values: np.ndarray, dtype: str) -> np.ndarray:
    """The distance between neighbouring numbers of a precision at the given magnitudes."""
    _, exponents = np.frexp(np.abs(values))
    digits = -int(np.log2(UNIT_ROUNDOFF[dtype]))
    return np.ldexp(1.0, np.maximum(exponents - 1, _SMALLEST_EXPONENT[dtype]) - digits + 1)
