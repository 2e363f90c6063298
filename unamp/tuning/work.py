"""The work that an operation is: what a share of the work is a share of."""

from __future__ import annotations

import math

from unamp.adapter.records import OpRecord

__all__ = ["work_of"]


def work_of(record: OpRecord) -> float:
    """Return how much an operation computes; the trace must have values."""
    return 0.0 if record.values is None else float(math.prod(record.values.shape))
