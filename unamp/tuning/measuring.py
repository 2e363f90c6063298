"""The error of a run: the distance of its results from the results of the float32 run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from unamp.adapter import registry
from unamp.errors import shortened

if TYPE_CHECKING:
    import numpy as np

    from unamp.adapter import Operations

#: The results of a run, in float64: for each result one row, or several for a list or a mapping.
Results = list[list["np.ndarray"]]


def results_of(value: object) -> Results:
    """Return copies of a run's results, as numbers.

    Raises:
        TypeError: where a result holds anything but tensors, arrays and numbers.
    """
    top = _inner(value)
    return [list(map(_row, _leaves(each))) for each in ([value] if top is None else top)]


def worst_error(reference: Results, other: Results) -> float:
    """Return the largest relative error of all results, by norms.

    It is infinite where a result is finite only in the reference, and where sizes differ. A list or
    a mapping among the results (a network's gradients) has one error: its norm is over all in it.
    """
    shapes = [[[len(row) for row in rows] for rows in results] for results in (reference, other)]
    if shapes[0] != shapes[1]:
        return math.inf
    return max((_error(a, b) for a, b in zip(reference, other, strict=True)), default=0.0)


def _error(reference: list[np.ndarray], other: list[np.ndarray]) -> float:
    difference = total = 0.0
    for a, b in zip(reference, other, strict=True):
        finite = abs(a) < math.inf
        if not (b[~finite] == a[~finite]).all() or not (abs(b[finite]) < math.inf).all():
            return math.inf
        difference += float(((a[finite] - b[finite]) ** 2).sum())
        total += float((a[finite] ** 2).sum())
    return math.sqrt(difference / (total or 1.0))


def has_nan(results: Results) -> bool:
    """Return whether any result has a NaN."""
    return any(bool((row != row).any()) for rows in results for row in rows)


def norms(results: Results) -> list[float]:
    """Return the norm of each result's finite numbers, for a later process to compare."""
    return [
        math.sqrt(sum(float((row[abs(row) < math.inf] ** 2).sum()) for row in rows))
        for rows in results
    ]


def single_number(measured: Any) -> float:
    """Return the result of a user's measure as a number; a NaN becomes infinity.

    Raises:
        TypeError: where it is not a single number.
    """
    try:
        found = float(measured)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"measure must return one number, the error of a run; it returned {shortened(measured)}"
        ) from error
    return math.inf if math.isnan(found) else found


def same_objects(one: object, other: object) -> bool:
    """Return whether two runs gave the same tensor or array: the second run overwrote the first."""
    return not {
        id(leaf) for leaf in _leaves(one) if not isinstance(leaf, (bool, int, float))
    }.isdisjoint(map(id, _leaves(other)))


def _inner(value: object) -> list[object] | None:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple)) else None


def _leaves(value: object) -> Iterator[object]:
    inner = _inner(value)
    if inner is not None:
        for each in inner:
            yield from _leaves(each)
    elif value is not None:
        yield value


def _row(leaf: Any) -> np.ndarray:
    adapter = registry.owner(leaf, "tensor")
    array = leaf if adapter is None else _operations(adapter.framework).numpy(leaf)
    if isinstance(leaf, (bool, int, float)):
        import numpy

        array = numpy.asarray(leaf)
    if not hasattr(array, "astype") or getattr(array, "dtype", None) is None:
        raise TypeError(
            f"run gave a {type(leaf).__name__}, which has no error of itself; return tensors, "
            "arrays or numbers (in lists or mappings), or give measure=, "
            "which is handed what run returns"
        )
    row: np.ndarray = array.astype("float64").reshape(-1)
    return row


@cache
def _operations(framework: str) -> Operations:
    return registry.adapter_for(framework).operations()
