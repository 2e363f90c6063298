"""The precision that explains some numbers.

It is found from values, never from dtype tags, and from the prediction of every precision: the
float64 result for the inputs as they were, for the inputs rounded to bfloat16, and for the inputs
rounded to float16. Values computed

- in float32 lie within float32's own error of the first prediction;
- in a low precision lie on its grid, and are not just another prediction rounded to that grid (that
  is what changing the dtype tag of a float32 result gives, or computing in the other low
  precision).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from unamp_conformance.check.rounding import UNIT_ROUNDOFF, on_grid, round_to, spacing

__all__ = ["LOW", "PRECISIONS", "Prediction", "explain", "only_moves", "tells"]

LOW = ("bfloat16", "float16")
PRECISIONS = ("float32", *LOW)


@dataclass(frozen=True)
class Prediction:
    """The results that each precision would give.

    Attributes:
        values: by precision, the float64 results: flat, of one length.
        tolerance: for each element, the error that float32's own rounding may cause.
        exact: whether results must be equal (integers, booleans).
        rounded: whether results are rounded to the low grid; complex numbers are only where their
            dtype is a low one.
    """

    values: Mapping[str, np.ndarray]
    tolerance: np.ndarray
    exact: bool = False
    rounded: bool = True
    _allowed: dict[tuple[str, str], np.ndarray] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def allowed(self, computed: str, label: str) -> np.ndarray:
        """Return the errors allowed to results of one precision, rounded to another's grid."""
        if (computed, label) not in self._allowed:
            exact, tolerance = self.values[computed], self.tolerance
            if (computed, label) == ("float16", "bfloat16"):  # rounded twice
                tolerance = tolerance + 0.5001 * spacing(exact, computed)
            self._allowed[computed, label] = 0.5001 * spacing(exact, label) + tolerance
        return self._allowed[computed, label]


def explain(observed: np.ndarray, prediction: Prediction) -> tuple[frozenset[str], str]:
    """Return the precisions that values are consistent with, and a diagnosis if there is none.

    Args:
        observed: the values, flat, as float64.
        prediction: the results that each precision would give.
    """
    consistent = frozenset(p for p in PRECISIONS if _fits(observed, prediction, p))
    return consistent, "" if consistent else _diagnosis(observed, prediction)


def tells(prediction: Prediction, float32: np.ndarray) -> bool:
    """Return whether inputs are well chosen, so that results tell the precisions apart.

    Each precision's ideal result is recognised, and a relabelled one is not.

    Args:
        prediction: the results that each precision would give.
        float32: the framework's own results in float32.
    """
    if explain(float32, prediction)[0] != {"float32"}:
        return False
    for low in LOW:
        ideal = _ideal(prediction, low)
        if explain(ideal, prediction)[0] != {low}:
            return False
        relabelled = ideal if prediction.exact else round_to(prediction.values["float32"], low)
        # Of an operation that only moves values, a relabelled result is the right one.
        if not np.array_equal(relabelled, ideal) and low in explain(relabelled, prediction)[0]:
            return False
    return True


def only_moves(prediction: Prediction) -> bool:
    """Return whether an operation only moves values.

    Then the result for rounded inputs is the rounded result.
    """
    return not prediction.exact and all(
        np.array_equal(
            round_to(prediction.values["float32"], low), _ideal(prediction, low), equal_nan=True
        )
        for low in LOW
    )


def _ideal(prediction: Prediction, low: str) -> np.ndarray:
    values = prediction.values[low]
    return round_to(values, low) if prediction.rounded and not prediction.exact else values


def _fits(observed: np.ndarray, prediction: Prediction, precision: str) -> bool:
    expected = prediction.values[precision]
    if prediction.exact:
        return bool(np.array_equal(observed, expected))
    if precision == "float32" or not prediction.rounded:
        return _within(observed, expected, prediction.tolerance)
    if not on_grid(observed, precision) or not np.array_equal(
        np.isfinite(observed), np.isfinite(expected)
    ):
        return False
    if not _plausible(observed, prediction, precision):
        return False
    if _within(observed, expected, prediction.allowed(precision, precision)):
        return True
    if precision == "float16" and on_grid(observed, "bfloat16"):
        # bfloat16's grid is a part of float16's for most numbers: these come from bfloat16
        return False
    # Rounding inside an operation adds the same to the distance from every prediction, so an honest
    # result is not much nearer to another one.
    other_low = next(p for p in LOW if p != precision)
    if _distance(observed, prediction, other_low, precision) < 0.6 * _distance(
        observed, prediction, precision, precision
    ):
        return False
    return not any(
        _relabelled(observed, prediction, other, precision)
        for other in PRECISIONS
        if other != precision
    )


def _distance(observed: np.ndarray, prediction: Prediction, precision: str, grid: str) -> float:
    """Return the distance of values from a prediction, in spacings of a grid.

    A number counts as eight spacings at most, since numbers may have cancelled.
    """
    expected = prediction.values[precision]
    finite = np.isfinite(expected)
    return (
        _rms(np.minimum(np.abs(observed - expected)[finite] / spacing(expected[finite], grid), 8.0))
        if finite.any()
        else 0.0
    )


def _relabelled(observed: np.ndarray, prediction: Prediction, computed: str, label: str) -> bool:
    """Return whether the values are those of one precision, rounded to another's grid."""
    exact = prediction.values[computed]
    if np.all(np.abs(exact - prediction.values[label]) <= prediction.tolerance):
        # inputs were low already: the two predictions do not differ
        return False
    return _within(observed, exact, prediction.allowed(computed, label))


def _within(observed: np.ndarray, expected: np.ndarray, tolerance: np.ndarray) -> bool:
    finite = np.isfinite(expected)
    if finite.all():
        return bool(np.all(np.abs(observed - expected) <= tolerance))
    if not np.array_equal(observed[~finite], expected[~finite], equal_nan=True):
        return False
    return bool(np.all(np.abs(observed[finite] - expected[finite]) <= tolerance[finite]))


def _plausible(observed: np.ndarray, prediction: Prediction, precision: str) -> bool:
    """Return whether values are near the prediction, for a few dozen roundings."""
    expected, best = prediction.values[precision], prediction.values["float32"]
    finite = np.isfinite(expected) & np.isfinite(observed) & np.isfinite(best)
    if not finite.any():
        return True
    error, moved, size = (_rms(v[finite]) for v in (observed - expected, best - expected, expected))
    return error <= 8.0 * moved + 32.0 * UNIT_ROUNDOFF[precision] * size


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _diagnosis(observed: np.ndarray, prediction: Prediction) -> str:
    if prediction.exact:
        share = {p: float(np.mean(observed == prediction.values[p])) for p in PRECISIONS}
        return "agrees with no precision: " + ", ".join(
            f"{p} in {100 * s:.0f}% of the values" for p, s in share.items()
        )
    if not np.array_equal(np.isfinite(observed), np.isfinite(prediction.values["float32"])):
        return "not finite where it should be, or finite where it should not"
    for low in LOW:
        if _within(observed, prediction.values[low], prediction.tolerance):
            return f"inputs were rounded to {low}, but the result was not"
    for low in LOW:
        if on_grid(observed, low):
            for p in PRECISIONS:
                if p != low and _relabelled(observed, prediction, p, low):
                    return f"computed in {p}; only the result was rounded to {low}"
            return f"on the grid of {low}, but far from what {low} gives"
    error = {
        p: _rms((observed - prediction.values[p])[np.isfinite(observed - prediction.values[p])])
        for p in PRECISIONS
    }
    return "consistent with no precision; errors: " + ", ".join(
        f"{p} {e:.2g}" for p, e in error.items()
    )
