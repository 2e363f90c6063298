"""Progress of a search: a line on a terminal, or a function that the caller gives."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from unamp.errors import shortened


class Step(NamedTuple):
    """The state of a search after a run.

    Attributes:
        runs: the number of runs of the network so far.
        units: the number of units: places, operations or layers.
        held: the number of units that the best set so far holds in float32.
        low: the share of the work that is low with that set.
    """

    runs: int
    units: int
    held: int
    low: float

    def __str__(self) -> str:
        return (
            f"{self.runs} runs; best so far: {self.held} of {self.units} in float32, "
            f"{self.low:.1%} of the work low"
        )


Progress = Callable[[Step], None]


@contextmanager
def showing(wanted: bool | Progress | None) -> Iterator[Progress]:
    """Yield the function to call after every run.

    Args:
        wanted: that function; True or False, to show a line or nothing; None, to show a line where
            standard error is a terminal.

    Raises:
        TypeError: for anything else.
    """
    if callable(wanted):
        yield wanted
        return
    if wanted not in (True, False, None):
        raise TypeError(
            f"progress must be a function of a Step, True, False or None; not {shortened(wanted)}"
        )
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield lambda step: None
        return
    try:
        from rich.console import Console
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] != "rich":
            raise
        yield lambda step: print(f"\r{step}", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        return
    with Console(stderr=True, markup=False, highlight=False).status(
        "unamp tune: float32"
    ) as status:
        yield lambda step: status.update(f"unamp tune: {step}")
