"""A trace that one call opens and another closes, as `paddle.amp.debugging` has it."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

import unamp
from unamp.regions import innermost_region, open_regions

TraceT = TypeVar("TraceT", bound=unamp.Trace)


class ThreadTrace(threading.local, Generic[TraceT]):
    """The trace that each thread has open, if any."""

    _trace: TraceT | None = None
    _within: tuple[object, ...] = ()

    def open(self, trace: TraceT) -> None:
        """Open a trace in this thread."""
        self._within = open_regions(), innermost_region()
        trace.__enter__()
        self._trace = trace

    def close(self) -> TraceT | None:
        """Close this thread's trace and return it; None where none is open.

        Raises:
            RuntimeError: in another region than that in which it was opened; the trace stays open.
        """
        trace = self._trace
        if trace is None:
            return None
        if self._within != (open_regions(), innermost_region()):
            raise RuntimeError(
                "this was enabled outside of the region that is open now, or inside of one that is "
                "closed; disable it where it was enabled: both before the region, "
                "or both inside of it"
            )
        trace.__exit__(None, None, None)
        self._trace = None
        return trace
