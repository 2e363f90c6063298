"""Where a way has its region: inside the function that is run in it, or around the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import nn

from unamp.adapter import OpenRegion, Way

__all__ = ["Function", "Holding", "both", "inside"]

Function = Callable[..., Any]

#: Runs a function on some inputs in a way that knows of no region.
Runs = Callable[[Function, Sequence[Any]], Any]


class Holding(nn.Module):
    """A network without parameters whose forward is a function."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        """Call the function."""
        return self.function(*inputs)


def inside(function: Function, region: OpenRegion) -> Function:
    """Return a function with the region in it."""

    def body(*inputs: Any) -> Any:
        with region():
            return function(*inputs)

    return body


def both(name: str, kind: str, runs: Runs, **promised: Any) -> Iterator[Way]:
    """Yield two ways: the region inside the function, and around the whole."""

    def run_inside(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
        return runs(inside(function, region), inputs)

    def run_around(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
        with region():
            return runs(function, inputs)

    yield Way(f"{name}, region inside", kind, run_inside, **promised)
    yield Way(f"{name}, region around", kind, run_around, **promised)
