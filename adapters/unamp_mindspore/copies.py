"""Copies of objects for MindSpore's compiler, which knows objects by their identity."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from mindspore import nn
from mindspore._c_expression import Cell_

T = TypeVar("T")
MadeT = TypeVar("MadeT")


class Kept:
    """The copies of objects, each kept as long as its original lives.

    They are found by id, since many objects take no attributes and some are not hashable. An entry
    is dropped with its original, before another object can have the id; an original that takes no
    weak reference is kept alive.
    """

    def __init__(self) -> None:
        self._made: dict[int, tuple[object, Any]] = {}

    def get(self, value: T, make: Callable[[T], MadeT]) -> MadeT:
        """Return the copy that was made for a value, or make it."""
        found: tuple[object, MadeT] | None = self._made.get(id(value))
        if found is None:
            made = make(value)
            self._made[id(value)] = found = self._reference(value), made
        return found[1]

    def _reference(self, value: T) -> weakref.ref[T] | T:
        key = id(value)
        try:
            return weakref.ref(value, lambda _: self._made.pop(key, None))
        except TypeError:
            return value


def function_copy(value: types.FunctionType) -> types.FunctionType:
    """Return a copy of a function: an object with an id of its own, for the compiler."""
    made = types.FunctionType(
        value.__code__, value.__globals__, value.__name__, value.__defaults__, value.__closure__
    )
    vars(made).update(vars(value))
    for name in ("__kwdefaults__", "__module__", "__qualname__"):
        setattr(made, name, getattr(value, name))
    return made


def begun(cell: nn.Cell) -> nn.Cell:
    """Return a new cell of the same class, without attributes."""
    kind: Any = type(cell)
    made = kind.__new__(kind)
    Cell_.__init__(made, type(cell).__name__)  # the part of a cell that is C++
    nn.Cell.total_instance_count += 1  # a cell that is freed counts down
    return made
