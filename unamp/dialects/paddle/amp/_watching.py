"""A trace that one call opens and another closes, as `paddle.amp.debugging` has it."""

from __future__ import annotations

from typing import Generic, TypeVar

import unamp
from unamp.regions import innermost_region, open_regions

TraceT = TypeVar("TraceT", bound=unamp.Trace)


class Watch(Generic[TraceT]):
    """An open trace.

    Args:
        trace: the trace to open.
    """

    def __init__(self, trace: TraceT) -> None:
        self._trace = trace
        self._within = open_regions(), innermost_region()
        trace.__enter__()

    def close(self) -> TraceT:
        """Close the trace and return it.

        Raises:
            RuntimeError: in another region than that in which it was opened; the trace stays open.
        """
        if self._within != (open_regions(), innermost_region()):
            raise RuntimeError(
                "this was enabled outside of the region that is open now, or inside of one that is "
                "closed; disable it where it was enabled: both before the region, "
                "or both inside of it"
            )
        self._trace.__exit__(None, None, None)
        return self._trace
