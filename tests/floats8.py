"""Products in float8, on every framework whose adapter computes them.

Each framework's folder tests them on its own functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import unamp
from unamp.adapter.float8 import Arithmetic, dequantized, format_of

TYPES = {"float8_e4m3": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2}

_drawn = np.random.default_rng(5)

#: Two matrices to multiply.
FACTORS = (
    (_drawn.standard_normal((5, 48)) * np.logspace(-2, 2, 48)).astype(np.float32),
    _drawn.standard_normal((48, 6)).astype(np.float32),
)


def held(x: np.ndarray, dtype: str) -> np.ndarray:
    """Return an array as float8 with one scale holds it, computed with NumPy and ml_dtypes."""
    largest = float(ml_dtypes.finfo(TYPES[dtype]).max)
    scale = np.float32(largest / max(np.float64(abs(x).max()), 1e-12))
    return (x * scale).clip(-largest, largest).astype(TYPES[dtype]).astype(np.float32) / scale


def numbers_are_those_of_ml_dtypes(
    arithmetic: Arithmetic, tensor: Callable[[np.ndarray], Any], numpy: Callable[[Any], np.ndarray]
) -> None:
    """Check a tensor with numbers of all sizes: float8 holds it bit by bit as ml_dtypes does."""
    drawn = np.random.default_rng(0)
    for dtype in TYPES:
        every = np.arange(256, dtype=np.uint8).view(TYPES[dtype]).astype(np.float32)
        x = np.concatenate(
            [
                every[np.isfinite(every)],
                drawn.standard_normal(5000) * np.exp(drawn.uniform(-16, 5, 5000)),
            ]
        )
        x = x.astype(np.float32)
        found = numpy(dequantized(tensor(x), format_of(dtype)[0], None, arithmetic))
        assert (found.view(np.int32) == held(x, dtype).view(np.int32)).all()


def error_is_that_of_numpy(call: Callable[[], Any], dtype: str) -> None:
    """Check the error of the product of `FACTORS` against NumPy's with ml_dtypes."""
    a, b = FACTORS
    exact, low = (a @ b).astype(np.float64), (held(a, dtype) @ held(b, dtype)).astype(np.float64)
    with unamp.trace(shadow=dtype) as trace:
        call()
    found = [
        record.shadow for record in trace.records if record.shadow and not record.shadow.left_out
    ]
    assert len(found) == 1, trace.shadow_table()
    assert found[0].error == pytest.approx(
        np.linalg.norm(low - exact) / np.linalg.norm(exact), rel=1e-4
    )
