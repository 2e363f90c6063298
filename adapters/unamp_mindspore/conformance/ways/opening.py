"""The functions and cells that ways run; they differ in the place of the region or decorator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import mindspore
from mindspore import nn

from unamp._function_types import Function
from unamp.adapter import OpenRegion

#: Operations that run in no way of MindSpore's, not even eagerly.
NO_KERNEL = {"einsum": "the CPU has no kernel for it"}

#: Operations that do not run where a way itself records for gradients, or computes a second time.
RECORDS = NO_KERNEL | {
    "residual": "a running statistic that is an input of what is recorded cannot be changed"
}


# MindSpore's compiler reads what follows.
class Holding(nn.Cell):  # type: ignore[misc]
    """A cell without parameters that calls a function."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def construct(self, *inputs):  # type: ignore[no-untyped-def]
        """Call the function."""
        return self.function(*inputs)


class HoldingCell(nn.Cell):  # type: ignore[misc]
    """A cell with another one in it."""

    def __init__(self, cell: nn.Cell) -> None:
        super().__init__()
        self.cell = cell

    def construct(self, *inputs):  # type: ignore[no-untyped-def]
        """Call the other one."""
        return self.cell(*inputs)


def inside(function: Function, region: OpenRegion) -> Function:
    """Return a function that opens the region and calls another one in it."""

    def body(*inputs):  # type: ignore[no-untyped-def]
        with region():
            return function(*inputs)

    return body


def calling(function: Function) -> Function:
    """Return a function that only calls another one."""

    def call(*inputs):  # type: ignore[no-untyped-def]
        return function(*inputs)

    return call


def decorated_cell(function: Function, region: OpenRegion) -> nn.Cell:
    """Return a cell whose `construct` is decorated with the region."""

    class Decorated(Holding):
        @region()
        def construct(self, *inputs):  # type: ignore[no-untyped-def]
            return self.function(*inputs)

    return Decorated(function)


def cell_with_decorated_method(function: Function, region: OpenRegion) -> nn.Cell:
    """Return a cell that calls a method of its own which is decorated with the region."""

    class Calls(Holding):
        @region()
        def compute(self, *inputs):  # type: ignore[no-untyped-def]
            return self.function(*inputs)

        def construct(self, *inputs):  # type: ignore[no-untyped-def]
            return self.compute(*inputs)

    return Calls(function)


@contextmanager
def graph_mode() -> Iterator[None]:
    """Have MindSpore compile cells while the context is open."""
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    try:
        yield
    finally:
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
