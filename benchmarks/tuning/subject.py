"""A network to tune, whatever the framework is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Subject", "images", "words"]


class Subject(NamedTuple):
    """A network.

    Attributes:
        name: what it is.
        network: the network, in evaluation mode.
        run: runs it on a batch.
        batch: makes the batch of a seed.
        tolerance: the error that is allowed, by dtype; where a dtype has none, half of the error
            with everything low.
        batches: how many batches to search with; more where the results are few numbers, whose
            errors differ much.
    """

    name: str
    network: Any
    run: Callable[[Any], Any]
    batch: Callable[[int], Any]
    tolerance: dict[str, float] = {}  # noqa: RUF012 - it is not changed
    batches: int = 7


def images(seed: int, *shape: int) -> np.ndarray:
    """Random images."""
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def words(seed: int, count: int, *shape: int) -> np.ndarray:
    """Random words of a vocabulary."""
    return np.random.default_rng(seed).integers(0, count, shape)
