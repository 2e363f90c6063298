"""The data and training loop of both scripts of a pair: random images of four kinds."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["MAX_NORM", "MOMENTUM", "RATE", "STEPS", "arguments", "batches"]

STEPS, ACCUMULATED, IMAGES = 8, 2, 16  # two small batches to a step
RATE, MOMENTUM, MAX_NORM = 0.2, 0.9, 0.4


def batches() -> Iterator[list[tuple[Any, Any]]]:
    """Yield the batches of each step: images between -1 and 1, and their kinds.

    An array of images has the axes (number, channel, row, column).
    """
    generator = np.random.default_rng(0)
    kinds = generator.uniform(-0.8, 0.8, (4, 1, 8, 8))
    for _ in range(STEPS):
        step = []
        for _ in range(ACCUMULATED):
            labels = generator.integers(0, 4, IMAGES)
            noise = generator.uniform(-0.2, 0.2, (IMAGES, 1, 8, 8))
            step.append(((kinds[labels] + noise).astype(np.float32), labels))
        yield step


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="where weights are read and written")
    parser.add_argument(
        "--dtype",
        choices=("float16", "float32"),
        default="float16",
        help="float32: without mixed precision",
    )
    return parser.parse_args()
