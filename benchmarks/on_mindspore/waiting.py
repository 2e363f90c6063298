"""Timing until the kernel is done."""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import mindspore

__all__ = ["Waiting"]

_LOOPS = 40


@dataclass(frozen=True)
class Waiting:
    """A contender as `benchmarks.measure.Contender`, timed by the clock.

    MindSpore's kernels run in threads of their own: a thread's own processor time is only what it takes to put an operation
    into a queue.
    """

    name: str
    statement: str
    names: Mapping[str, Any]
    region: Callable[[], AbstractContextManager[Any]] = nullcontext
    goal: float | None = None
    at_most: float | None = None

    def sampler(self, seconds: float) -> Waiting:
        """Times so much of it at a time that reading the clock is nothing."""
        return self

    def sample(self) -> float:
        """Seconds for one execution of many, from the first call until the last kernel is done."""
        timer = timeit.Timer(self.statement, globals=dict(self.names))
        with self.region():
            timer.timeit(3)
            mindspore.runtime.synchronize()
            start = time.perf_counter()
            timer.timeit(_LOOPS)
            mindspore.runtime.synchronize()
            return (time.perf_counter() - start) / _LOOPS
