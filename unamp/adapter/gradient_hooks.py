"""Hooks on the results of reported operations, for `unamp.trace(gradients=True)`.

For every operation that an adapter reports to such a trace, it gets a `GradientHook`, and has the
framework call the hook with the gradient of each floating result. No number changes by that. A
graph may outlive the trace: it holds the hook, which holds `Arrivals`, which hold nothing once the
trace is closed. For a parameter, `parameter_hook` returns a hook.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unamp.adapter.framework_types import Row
from unamp.adapter.records import Gradient


class Arrivals:
    """The receiver of a trace's gradients while the trace is open; later ones are dropped.

    Args:
        take: gets each gradient, with the place of its operation among the records.
        chosen: returns whether gradients of parameters are taken now: theirs belong to the step in
            which they are computed.

    Attributes:
        followed: the parameters whose hooks are in place, by their ids.
    """

    def __init__(self, take: Callable[[Gradient], None], chosen: Callable[[], bool]) -> None:
        self.take: Callable[[Gradient], None] | None = take
        self.chosen = chosen
        self.undo: list[Callable[[], object]] = []
        self.followed: dict[int, object] = {}

    def close(self) -> None:
        """Stop taking gradients, and remove the hooks that can be removed."""
        self.take, self.chosen = None, lambda: False
        self.followed.clear()
        while self.undo:
            self.undo.pop()()


class GradientHook:
    """A hook that reports gradients of an operation's results, or of a parameter, to traces.

    The traces are those that recorded the operation.

    Args:
        places: each trace's arrivals with the place of the operation among its records, None for a
            parameter; an outer trace after an inner one.
        parameter: the parameter, by its layer and its name there.
    """

    def __init__(self, places: Sequence[tuple[Arrivals, int | None]], parameter: str = "") -> None:
        self._places = places
        self._parameter = parameter

    @property
    def wanted(self) -> bool:
        """Return whether one of the traces is still open, and takes gradients now."""
        return any(_takes(arrivals, place) for arrivals, place in self._places)

    def arrived(self, dtype: str, shape: Sequence[int], row: Row, result: int = 0) -> None:
        """Report a gradient.

        Args:
            dtype: the name of its dtype.
            shape: its shape.
            row: its numbers, as `unamp.adapter.records.Values.of` takes them.
            result: the number of the operation's floating result that it belongs to, from 0.
        """
        self._tell(Gradient.of(dtype, shape, row, result))

    def leave_out(self, why: str, result: int = 0) -> None:
        """Report that a gradient is not known, and why."""
        self._tell(Gradient("", result=result, left_out=why))

    def when_closed(self, undo: Callable[[], object]) -> None:
        """Have `undo` remove a hook once no trace that recorded the operation is open."""
        self._places[-1][0].undo.append(undo)

    def _tell(self, gradient: Gradient) -> None:
        for arrivals, place in self._places:
            if (take := arrivals.take) is not None and _takes(arrivals, place):
                take(gradient._replace(record=place, parameter=self._parameter))


def _takes(arrivals: Arrivals, place: int | None) -> bool:
    return arrivals.take is not None and (place is not None or arrivals.chosen())
