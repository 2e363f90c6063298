"""Timing that waits until the kernels are done."""

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
    """A contender that is timed by the wall clock.

    MindSpore's kernels run in their own threads: a thread's own processor time only covers putting
    an operation into a queue.
    """

    def sampler(self, seconds: float) -> Waiting:
        """Return a sampler that runs long enough for the clock to cost nothing."""
        return self

    def sample(self) -> float:
        """Return the seconds of one execution of many, until the last kernel is done."""
        timer = timeit.Timer(self.statement, globals=dict(self.names))
        with self.region():
            timer.timeit(3)
            mindspore.runtime.synchronize()
            start = time.perf_counter()
            timer.timeit(_LOOPS)
            mindspore.runtime.synchronize()
            return (time.perf_counter() - start) / _LOOPS
