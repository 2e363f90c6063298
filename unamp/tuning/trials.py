"""The trials of a search: each set of held units runs once per batch, and its errors are kept.

A budget ends them.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from statistics import fmean
from typing import Generic, NamedTuple, TypeVar

from unamp.errors import shortened

U = TypeVar("U", bound=Hashable)


class BudgetSpent(Exception):
    """Raised where the budget allows no further run."""


class Budget:
    """A limit on runs or on time.

    Args:
        runs: the number of runs.
        seconds: the time in which runs may begin.
    """

    def __init__(self, runs: float = math.inf, seconds: float = math.inf) -> None:
        self.runs = runs
        self._end = time.monotonic() + seconds

    def left(self, used: int) -> bool:
        """Return whether a further run may begin after `used` runs."""
        return used < self.runs and (self._end == math.inf or time.monotonic() < self._end)


_SECONDS = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}


def budget_of(said: object) -> Budget:
    """Return the budget that a person wrote: a number of runs, or a time.

    Args:
        said: a number of runs (``200``), or a time (``"90s"``, ``"10min"``, ``"1.5h"``, or a
            `timedelta`); None has no end.

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
                f"budget {shortened(said)} is none; say a number of runs (200), "
                "or a time ('90s', '10min', '1.5h')"
            )
        number, unit = found.groups()
        if unit is not None:
            return Budget(seconds=_positive(float(number) * _SECONDS[unit], said))
        if number.isdigit():
            return Budget(runs=_positive(int(number), said))
    if isinstance(said, int) and not isinstance(said, bool):
        return Budget(runs=_positive(said, said))
    raise TypeError(
        f"budget must be a number of runs, a time ('90s', '10min'), or None; not {shortened(said)}"
    )


def _positive(number: float, said: object) -> float:
    if number <= 0:
        raise ValueError(f"budget must be above 0, not {shortened(said)}")
    return number


class Trials(Generic[U]):
    """Errors of sets of held units, batch by batch.

    Args:
        measure: runs one batch with a set of units held, and returns the error.
        batches: the number of batches.
        limit: the largest error with which a set is enough.
        may_run: returns whether a further run may begin.
        told: called after every run, with the set.

    Attributes:
        errors: for each set the errors of the first batches, as far as they are known; sets in the
            order in which they were first tried.
        mean_limit: the largest mean of the errors of all batches with which a set is enough.
    """

    def __init__(
        self,
        measure: Callable[[frozenset[U], int], float],
        batches: int,
        limit: float,
        may_run: Callable[[], bool] = lambda: True,
        told: Callable[[frozenset[U]], None] = lambda held: None,
    ) -> None:
        self.batches, self.limit, self.mean_limit = batches, limit, math.inf
        self.errors: dict[frozenset[U], list[float]] = {}
        self._measure, self._may_run, self._told = measure, may_run, told

    def first(self, held: frozenset[U]) -> float:
        """Return a set's error on the first batch."""
        return next(self._each(held))

    def error(self, held: frozenset[U]) -> float:
        """Return the largest error of a set over all batches."""
        return max(self._each(held))

    def holds(self, held: frozenset[U]) -> bool:
        """Return whether a set is enough; the first batch beyond the limit ends its runs."""
        return all(error <= self.limit for error in self._each(held)) and self.within(
            self.errors[held]
        )

    def within(self, errors: Sequence[float]) -> bool:
        """Return whether the errors of all batches are known, and within the limits."""
        return (
            len(errors) == self.batches
            and max(errors) <= self.limit
            and fmean(errors) <= self.mean_limit
        )

    def known(self, held: frozenset[U]) -> float | None:
        """Return the largest error of a set.

        None where not all batches were run and no error is beyond the limit.
        """
        errors = self.errors.get(held, [])
        worst = max(errors, default=0.0)
        return worst if len(errors) == self.batches or worst > self.limit else None

    def best(self, work: Mapping[U, float]) -> frozenset[U] | None:
        """Return the set with the least work held that is known to be enough; None without one."""
        held = [units for units, errors in self.errors.items() if self.within(errors)]
        return min(
            held, key=lambda units: (sum(map(work.__getitem__, units)), len(units)), default=None
        )

    def _each(self, held: frozenset[U]) -> Iterator[float]:
        errors = self.errors.get(held, [])
        yield from errors
        for batch in range(len(errors), self.batches):
            if not self._may_run():
                raise BudgetSpent
            error = self._measure(held, batch)
            self.errors.setdefault(held, errors).append(error)
            self._told(held)
            yield error


def spread_of(errors: Iterable[Sequence[float]]) -> float:
    """Return the relative standard deviation of errors from batch to batch, pooled over sets."""
    squares, free = 0.0, 0
    for each in errors:
        mean = fmean(each)
        if len(each) > 1 and 0.0 < mean < math.inf:
            squares += math.fsum((error / mean - 1.0) ** 2 for error in each)
            free += len(each) - 1
    return math.sqrt(squares / free) if free else 0.0


def allowance(spread: float, batches: int) -> float:
    """Return the factor by which the mean error of the batches must be below the tolerance.

    19 of 20 new batches are within 1.65 standard deviations above the mean. Where few places are
    left to err, errors scatter by up to two fifths more than on average: this gives 2.3. The mean
    of a few batches is uncertain, too. A search that tries many sets would choose one that happens
    to suit its batches: this gives up to 4 deviations of the mean. Both factors were found by
    trying, on the networks of benchmarks/tuning.
    """
    return 1.0 + spread * (2.3 + 4.0 / math.sqrt(batches))


class Trial(NamedTuple):
    """A set of held units that was tried.

    Attributes:
        held: the number of units in float32.
        low: the share of the work that was low.
        error: the largest error so far; a set beyond the limit did not run on all batches.
        holds: whether the errors of all batches are within the limits.
    """

    held: int
    low: float
    error: float
    holds: bool
