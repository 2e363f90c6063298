"""Timing until the kernel is done."""

from __future__ import annotations

import time
import timeit
from dataclasses import dataclass

import mindspore

from benchmarks.measure import Contender

__all__ = ["Waiting"]

_LOOPS = 40


@dataclass(frozen=True)
class Waiting(Contender):
    """A contender that is timed by the clock.

    MindSpore's kernels run in threads of their own: a thread's own processor time is only what it
    takes to put an operation into a queue.
    """

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
