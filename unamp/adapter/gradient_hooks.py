"""Hooks on the results of reported operations, for `unamp.trace(gradients=True)`.

They tell a trace of the results' gradients. An adapter is given a `GradientHook` for every
operation that it reports to such a trace. It has the framework call it with the gradient of each
floating result, and changes no number by that. A graph may outlive the trace: it holds a hook,
which holds `Arrivals`, which hold nothing once the trace is closed. For a parameter,
`parameter_hook` gives one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unamp.adapter.framework_types import Row
from unamp.adapter.records import Gradient


class Arrivals:
    """The place where a trace gets gradients while it is open; what arrives afterwards is dropped.

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
        """Take nothing any more, and remove the hooks that can be removed."""
        self.take, self.chosen = None, lambda: False
        self.followed.clear()
        while self.undo:
            self.undo.pop()()


class GradientHook:
    """A hook that tells traces of the gradients of an operation's results, or of a parameter.

    The traces of an operation are those that recorded it.

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
        """Tell of a gradient.

        Args:
            dtype: the name of its dtype.
            shape: its shape.
            row: its numbers, as `unamp.adapter.records.Values.of` takes them.
            result: which of the operation's floating results it is of.
        """
        self._tell(Gradient.of(dtype, shape, row, result))

    def leave_out(self, why: str, result: int = 0) -> None:
        """Tell that a gradient is not known."""
        self._tell(Gradient("", result=result, left_out=why))

    def when_closed(self, undo: Callable[[], object]) -> None:
        """Remember how a hook is removed once no trace that recorded the operation is open."""
        self._places[-1][0].undo.append(undo)

    def _tell(self, gradient: Gradient) -> None:
        for arrivals, place in self._places:
            if (take := arrivals.take) is not None and _takes(arrivals, place):
                take(gradient._replace(record=place, parameter=self._parameter))


def _takes(arrivals: Arrivals, place: int | None) -> bool:
    return arrivals.take is not None and (place is not None or arrivals.chosen())
