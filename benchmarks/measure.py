"""Interleaved timing: in each round, every contender is timed for a short time, in turn.

A disturbance (a busy neighbour, a change of clock speed) disturbs all contenders of a round. So
each round gives one ratio to the baseline, and the result is the median of these ratios. Rounds are
short for that reason. Work in this process is timed by its own processor time: waiting for other
programs is no cost of a contender.
"""

from __future__ import annotations

import math
import random
import time
import timeit
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, Protocol

__all__ = ["Comparison", "Contender", "Effort", "Outcome", "Sampler", "Standing", "measure"]


class Sampler(Protocol):
    """A measurement that can be repeated."""

    def sample(self) -> float:
        """Return the seconds of one execution, or the bytes, by the comparison's unit."""


@dataclass(frozen=True)
class Contender:
    """A statement, run many times inside a region.

    Attributes:
        name: the contender's name in the table.
        statement: Python source.
        names: the names that the statement uses.
        region: makes the region. It is made, entered and left once per round, outside of the
            measured time.
        goal: the highest acceptable ratio to the baseline; None where nothing is promised.
        at_most: the most seconds that it may take; None likewise.
        timer: the clock: the processor time of this thread, or `time.process_time` for a framework
            that computes in other threads.
    """

    name: str
    statement: str
    names: Mapping[str, Any]
    region: Callable[[], AbstractContextManager[Any]] = nullcontext
    goal: float | None = None
    at_most: float | None = None
    timer: Callable[[], float] = time.thread_time

    def sampler(self, seconds: float) -> Sampler:
        """Return a sampler that runs the statement for about `seconds` at a time."""
        return _Loop(self, seconds)


class _Loop:
    def __init__(self, contender: Contender, seconds: float) -> None:
        self._region = contender.region
        self._timer = timeit.Timer(
            contender.statement, timer=contender.timer, globals=dict(contender.names)
        )
        with self._region():
            self._timer.timeit(3)
            once = min(self._timer.timeit(5) / 5 for _ in range(5)) if seconds else math.inf
        self._loops = max(1, round(seconds / once))

    def sample(self) -> float:
        with self._region():
            # the first call in a region may be slower, and is not measured here
            self._timer.timeit(max(1, self._loops // 50))
            return self._timer.timeit(self._loops) / self._loops


@dataclass(frozen=True)
class Comparison:
    """Contenders that do the same job. The first is the baseline.

    Attributes:
        title: the name of the job.
        contenders: objects with `name`, `goal`, `at_most` and `sampler(seconds)`, as `Contender`
            has them.
        unit: the unit of the measurements: ``"seconds"`` or ``"bytes"``.
    """

    title: str
    contenders: tuple[Any, ...]
    unit: str = "seconds"


@dataclass(frozen=True)
class Effort:
    """The extent of a measurement: rounds, and the seconds of one contender in a round."""

    rounds: int
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """The measurement of one contender.

    Attributes:
        median: the median of the rounds, in the comparison's unit.
        ratio: the median of the rounds' ratios to the baseline.
        quartiles: the first and third quartile of these ratios.
        surely: the 95% confidence interval of their median.
    """

    name: str
    median: float
    ratio: float
    quartiles: tuple[float, float]
    surely: tuple[float, float]
    goal: float | None = None
    at_most: float | None = None

    @property
    def verdict(self) -> str:
        """``"pass"``, ``"miss"`` or ``"close"``; empty where there is no goal.

        ``"close"`` is a miss that may be noise.
        """
        if self.at_most is not None and self.median > self.at_most:
            return "miss"
        if self.goal is None:
            return "" if self.at_most is None else "pass"
        if self.ratio <= self.goal:
            return "pass"
        return "close" if self.surely[0] <= self.goal else "miss"


@dataclass(frozen=True)
class Standing:
    """The measurements of a comparison."""

    title: str
    rounds: int
    outcomes: tuple[Outcome, ...]
    unit: str = "seconds"


def measure(comparison: Comparison, effort: Effort) -> Standing:
    """Time the contenders of a comparison in turn."""
    contenders = comparison.contenders
    samplers = [contender.sampler(effort.seconds) for contender in contenders]
    times: list[list[float]] = [[] for _ in contenders]
    order, chance = list(range(len(contenders))), random.Random(0)
    for _ in range(effort.rounds):
        chance.shuffle(order)  # no contender always finds the caches of the same other one
        for i in order:
            times[i].append(samplers[i].sample())
    return Standing(
        comparison.title,
        effort.rounds,
        tuple(
            _outcome(contender, own, times[0])
            for contender, own in zip(contenders, times, strict=True)
        ),
        comparison.unit,
    )


def _outcome(contender: Any, own: list[float], baseline: list[float]) -> Outcome:
    ratios = sorted(a / b for a, b in zip(own, baseline, strict=True))
    first, _, third = quantiles(ratios, n=4)
    # Order statistics: the ranks between which the true median lies in 95% of all cases.
    reach = 0.98 * math.sqrt(len(ratios))
    low = ratios[max(0, math.floor(len(ratios) / 2 - reach))]
    high = ratios[min(len(ratios) - 1, math.ceil(len(ratios) / 2 + reach))]
    return Outcome(
        contender.name,
        median(own),
        median(ratios),
        (first, third),
        (low, high),
        contender.goal,
        contender.at_most,
    )
