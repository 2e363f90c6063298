"""The trials of a search: each set of held units runs once per batch, and is remembered.

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
    """A search may run nothing more."""


class Budget:
    """How much may be run: `runs`, `seconds`, or without an end.

    Args:
        runs: how many runs.
        seconds: for how long runs may begin.
    """

    def __init__(self, runs: float = math.inf, seconds: float = math.inf) -> None:
        self.runs = runs
        self._end = time.monotonic() + seconds

    def left(self, used: int) -> bool:
        """Return whether a further run may begin after so many."""
        return used < self.runs and (self._end == math.inf or time.monotonic() < self._end)


_SECONDS = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}


def budget_of(said: object) -> Budget:
    """Return a budget as a person says it: a number of runs, or a time.

    Args:
        said: how many runs (``200``), for how long (``"90s"``, ``"10min"``, ``"1.5h"``, or a
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
        measure: runs one batch with a set of units held, and returns its error.
        batches: how many batches there are.
        limit: the largest error with which a set holds.
        may_run: whether a further run may begin.
        told: called after every run, with the set.

    Attributes:
        errors: what is known: for each set the errors of the first batches, in the order in which
            sets were first asked for.
        mean_limit: the largest mean of the errors of all batches with which a set holds.
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
        """Return a set's error: that of the worst of all batches."""
        return max(self._each(held))

    def holds(self, held: frozenset[U]) -> bool:
        """Return whether a set is enough; the first batch that is beyond the limit ends it."""
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
        """Return the largest known error of a set.

        It is that of all batches, or one that is beyond the limit; None where neither was seen.
        """
        errors = self.errors.get(held, [])
        worst = max(errors, default=0.0)
        return worst if len(errors) == self.batches or worst > self.limit else None

    def best(self, work: Mapping[U, float]) -> frozenset[U] | None:
        """Return the set that is known to hold with the least work held; None where none is."""
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
    """Return the relative standard deviation of errors from batch to batch, over sets together."""
    squares, free = 0.0, 0
    for each in errors:
        mean = fmean(each)
        if len(each) > 1 and 0.0 < mean < math.inf:
            squares += math.fsum((error / mean - 1.0) ** 2 for error in each)
            free += len(each) - 1
    return math.sqrt(squares / free) if free else 0.0


def allowance(spread: float, batches: int) -> float:
    """Return the number of times that some batches' mean error has to fit into the allowed one.

    1.65 standard deviations above the mean are 19 of 20 fresh batches; where few places are left to
    err, errors scatter more than they did on average, by up to two fifths: 2.3. And the mean of a
    few batches is itself so uncertain that, of all that a search tries, it would take what those
    batches happen to like: up to 4 of the mean's own deviations. Both factors were found by trying,
    on the networks of benchmarks/tuning.
    """
    return 1.0 + spread * (2.3 + 4.0 / math.sqrt(batches))


class Trial(NamedTuple):
    """A set that was tried.

    Attributes:
        held: how many units were held in float32.
        low: the share of the work that was low.
        error: the largest error that was seen; if beyond the limit, that of the batches so far.
        holds: whether it is within the limits on all batches.
    """

    held: int
    low: float
    error: float
    holds: bool
