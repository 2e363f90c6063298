"""Interleaved timing: every contender is timed a little, in turn, for many rounds.

What disturbs a round (a busy neighbour, a change of clock speed) disturbs all contenders of it. So
each round gives one ratio to the baseline, and the median of those is the result. Rounds are short
for that reason, and what runs in this process is timed by its own processor time: on a machine with
other things to do, waiting is no cost of the contender's.
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
    """Something that can be timed once more."""

    def sample(self) -> float:
        """Seconds for one execution, or bytes, as the comparison's unit says."""


@dataclass(frozen=True)
class Contender:
    """A statement, run many times inside a region.

    Attributes:
        name: what the table calls it.
        statement: Python source.
        names: the names that it uses.
        region: makes what it runs in; made, entered and left once per round, outside the measured
            time.
        goal: the highest acceptable ratio to the baseline; None where nothing is promised.
        at_most: the most seconds that it may take, likewise.
        timer: the clock: the processor time of this thread, or `time.process_time` for a framework
            that computes in others.
    """

    name: str
    statement: str
    names: Mapping[str, Any]
    region: Callable[[], AbstractContextManager[Any]] = nullcontext
    goal: float | None = None
    at_most: float | None = None
    timer: Callable[[], float] = time.thread_time

    def sampler(self, seconds: float) -> Sampler:
        """Times about `seconds` of it at a time."""
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
            # the region's first call is another question
            self._timer.timeit(max(1, self._loops // 50))
            return self._timer.timeit(self._loops) / self._loops


@dataclass(frozen=True)
class Comparison:
    """Contenders that do the same job. The first is the baseline.

    Attributes:
        title: what the job is.
        contenders: each with `name`, `goal`, `at_most` and `sampler(seconds)`, as `Contender` has
            them.
        unit: of what is measured: ``"seconds"`` or ``"bytes"``.
    """

    title: str
    contenders: tuple[Any, ...]
    unit: str = "seconds"


@dataclass(frozen=True)
class Effort:
    """How long to measure: rounds, and the seconds that one contender gets in a round."""

    rounds: int
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """The measurement of one contender.

    Attributes:
        median: the median of its rounds, in the unit of its comparison.
        ratio: the median of each round's ratio to the baseline.
        quartiles: the first and third quartile of those ratios.
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
        """``"pass"``, ``"miss"``, ``"close"``; or nothing where there is no goal.

        ``"close"`` is a miss that the noise does not let one be sure of.
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
    """A comparison, measured."""

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
        chance.shuffle(order)  # what the one before leaves in the caches is nobody's alone
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
