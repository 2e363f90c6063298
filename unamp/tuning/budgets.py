"""A budget as a person says it: a number of runs, or a time."""

from __future__ import annotations

import re
from datetime import timedelta

from unamp.errors import shortened
from unamp.tuning.trials import Budget

__all__ = ["budget_of"]

_SECONDS = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}


def budget_of(said: object) -> Budget:
    """Return a budget.

    Args:
        said: how many runs (``200``), for how long (``"90s"``, ``"10min"``, ``"1.5h"``, or a `timedelta`); None has no end.

    Raises:
        TypeError, ValueError: for anything else.
    """
    if said is None:
        return Budget()
    if isinstance(said, timedelta):
        return Budget(seconds=_positive(said.total_seconds(), said))
    if isinstance(said, str):
        found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|m|h)?", said)
        if found is None:
            raise ValueError(
                f"budget {shortened(said)} is none; say a number of runs (200), or a time ('90s', '10min', '1.5h')"
            )
        number, unit = found.groups()
        if unit is not None:
            return Budget(seconds=_positive(float(number) * _SECONDS[unit], said))
        if number.isdigit():
            return Budget(runs=_positive(int(number), said))
    if isinstance(said, int) and not isinstance(said, bool):
        return Budget(runs=_positive(said, said))
    raise TypeError(f"budget must be a number of runs, a time ('90s', '10min'), or None; not {shortened(said)}")


def _positive(number: float, said: object) -> float:
    if number <= 0:
        raise ValueError(f"budget must be above 0, not {shortened(said)}")
    return number
