"""A network to tune, of any framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Subject", "images", "words"]


class Subject(NamedTuple):
    """A network.

    Attributes:
        name: the network's name in the table.
        network: the network, in evaluation mode.
        run: runs the network on a batch.
        batch: makes a batch from a seed.
        tolerance: the error that is allowed, by dtype; for other dtypes, half of the error with
            everything low.
        batches: the number of batches of the search; more where results are few numbers, because
            their errors vary more.
    """

    name: str
    network: Any
    run: Callable[[Any], Any]
    batch: Callable[[int], Any]
    tolerance: dict[str, float] = {}  # noqa: RUF012 - it is not changed
    batches: int = 7


def images(seed: int, *shape: int) -> np.ndarray:
    """Return random images."""
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def words(seed: int, count: int, *shape: int) -> np.ndarray:
    """Return random words of a vocabulary."""
    return np.random.default_rng(seed).integers(0, count, shape)
