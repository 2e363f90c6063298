"""Standing in for functions, in ways that cost little to put in and take out.

For functions of Python code, and many changes at a time, see `unamp.replacing`.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

__all__ = ["Attribute", "Method"]


class Attribute:
    """A module's attribute that is something else while this is in, for functions of C++ that are looked up at every call."""

    __slots__ = ("_instead", "_name", "_own", "module")

    def __init__(self, module: types.ModuleType, name: str, instead: Any) -> None:
        self.module = module
        self._name = name
        self._own = vars(module)[name]
        self._instead = instead

    def put_in(self) -> None:
        """Be the replacement from now on."""
        setattr(self.module, self._name, self._instead)

    def take_out(self) -> None:
        """Be the original again; somebody who replaced it in the meantime keeps their change."""
        if vars(self.module)[self._name] is self._instead:
            setattr(self.module, self._name, self._own)


class Method:
    """A method of a class that is something else while this is in, for methods whose signature somebody reads.

    Args:
        of: the class; the method is its own, not inherited.
        name: the method's name.
        replacement: makes what is called in its place, given the original.
    """

    __slots__ = ("_instead", "_name", "_own", "of")

    def __init__(self, of: type, name: str, replacement: Callable[[Any], Callable[..., Any]]) -> None:
        self.of = of
        self._name = name
        self._own = vars(of)[name]
        self._instead = functools.wraps(self._own)(replacement(self._own))

    def put_in(self) -> None:
        """Be the replacement from now on."""
        setattr(self.of, self._name, self._instead)

    def take_out(self) -> None:
        """Be the original again; somebody who replaced it in the meantime keeps their change."""
        if vars(self.of).get(self._name) is self._instead:
            setattr(self.of, self._name, self._own)
