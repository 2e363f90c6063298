"""The order in which a search gives units back to the low dtype, and the units that stay held.

This module knows no framework. The set of all units is known to be enough. The set that a search
returns is enough, too, and no single unit of it can be given back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

U = TypeVar("U", bound=Hashable)
Holds = Callable[[frozenset[U]], bool]

#: The names of the searches: delta debugging, and the same on a ranking that takes a run per unit.
EFFORTS = ("halves", "ranked")


def at_first(
    units: Iterable[U], overflows: Callable[[U], bool], work: Mapping[U, float]
) -> list[U]:
    """Return units in the order to try: overflowing ones last, and more work first."""
    return sorted(units, key=lambda unit: (overflows(unit), -work[unit]))


def halves(order: Sequence[U], holds: Holds[U]) -> frozenset[U]:
    """Return the units that stay held, after halves, quarters, ... and single units are given back.

    Args:
        order: the units that are held at first; the first is given back first.
        holds: whether a set of held units is enough.
    """
    rest, size = list(order), max(1, len(order) // 2)
    while True:
        n = 0
        while n < len(rest):
            less = rest[:n] + rest[n + size :]
            if holds(frozenset(less)):
                rest = less
            else:
                n += size
        if size == 1:
            return _without_spare(rest, holds)
        size //= 2


def ranked(order: Sequence[U], holds: Holds[U]) -> frozenset[U]:
    """Return the units that stay held, from the shortest end of a ranking that is enough.

    Units of that end are given back, too, where they can be.

    Args:
        order: the units, from the least harm to the most; the first is given back first.
        holds: whether a set of held units is enough.
    """
    # The last `good` units are enough; the last `bad` are not.
    bad, good = 0, len(order)
    while good - bad > 1:
        middle = (bad + good) // 2
        if holds(frozenset(order[len(order) - middle :])):
            good = middle
        else:
            bad = middle
    return halves(order[len(order) - good :], holds)


def by_harm(units: Sequence[U], harm: Mapping[U, float], work: Mapping[U, float]) -> list[U]:
    """Return units in the order to give them back: by the squared error that each adds, per work.

    Errors are squared because the squares of independent roundings add up.
    """

    def dear(unit: U) -> float:
        if work[unit]:
            return harm[unit] ** 2 / work[unit]
        return math.inf if harm[unit] else 0.0

    return sorted(units, key=dear)


def _without_spare(rest: list[U], holds: Holds[U]) -> frozenset[U]:
    """Return the units that stay held; single ones are given back until none can be."""
    kept, before = frozenset(rest), None
    while kept != before:
        before = kept
        for unit in rest:
            if unit in kept and holds(kept - {unit}):
                kept -= {unit}
    return kept
