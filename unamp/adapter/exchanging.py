"""The loops of `unamp.adapter.replacing.PatchGroup` over functions and names: in Python, and in C in a fifth of the time.

Those in C are optional. They know Python and no framework: adapters whose regions exchange hundreds of functions have them
built with their other compiled parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Protocol, TypeAlias

from unamp.adapter.building import CompiledPart
from unamp.adapter.patching import Patch

__all__ = ["Exchange", "InC", "InPython", "Names", "build_hint", "part"]

_SOURCE = Path(__file__).with_suffix(".c")

#: A function, its own code, and the code that it runs instead.
Codes: TypeAlias = tuple[FunctionType, CodeType, CodeType]
#: A dictionary, what gets the names' values at once, those without and with the patch, each followed by a dictionary of them,
#: and the patch, which knows what to do where somebody else has changed a name.
Names: TypeAlias = tuple[dict[str, Any], Callable[[Any], Any], Any, dict[str, Any], Any, dict[str, Any], Patch]


class Exchange(Protocol):
    """The built module; `exchanging.c` has its functions."""

    def codes(
        self, functions: tuple[FunctionType, ...], instead: tuple[CodeType, ...], expected: tuple[CodeType, ...] | None, /
    ) -> None:
        """Have functions run other code: those that run what is expected, or (None) all."""

    def names(
        self, space: dict[str, Any], names: tuple[str, ...], instead: tuple[Any, ...], expected: tuple[Any, ...], /
    ) -> bool:
        """Have names stand for other values if each stands for what is expected; else change nothing, and return False."""


class InPython:
    """The loops in Python."""

    __slots__ = ("_codes", "_names", "_new_codes")

    def __init__(self, codes: Sequence[Codes], names: Iterable[Names]) -> None:
        self._codes = tuple(codes)
        self._new_codes = tuple((function, instead) for function, _, instead in codes)
        self._names = tuple(names)

    def apply(self) -> None:
        """Have functions run other code, and names stand for other values."""
        for function, instead in self._new_codes:
            function.__code__ = instead
        try:
            for space, get, own_values, _, _, new_names, patch in self._names:
                if get(space) == own_values:
                    space.update(new_names)
                else:
                    patch.apply()
        except KeyError:  # somebody has deleted a name
            for *_, patch in self._names:
                patch.apply()

    def undo(self) -> None:
        """Put the originals back; an object that somebody else has changed meanwhile stays."""
        for function, own, instead in self._codes:
            if function.__code__ is instead:
                function.__code__ = own
        try:
            for space, get, _, own_names, new_values, _, patch in self._names:
                if get(space) == new_values:
                    space.update(own_names)
                else:
                    patch.undo()
        except KeyError:
            for *_, patch in self._names:
                patch.undo()


class InC:
    """The same loops in C."""

    __slots__ = ("_exchange_codes", "_exchange_names", "_functions", "_names", "_new_codes", "_own_codes")

    def __init__(self, codes: Sequence[Codes], names: Iterable[Names], exchange: Exchange) -> None:
        self._functions = tuple(function for function, _, _ in codes)
        self._own_codes = tuple(own for _, own, _ in codes)
        self._new_codes = tuple(instead for _, _, instead in codes)
        self._names = tuple(
            (space, tuple(new), tuple(own[name] for name in new), tuple(new.values()), patch)
            for space, _, _, own, _, new, patch in names
        )
        self._exchange_codes, self._exchange_names = exchange.codes, exchange.names

    def apply(self) -> None:
        """Have functions run other code, and names stand for other values."""
        self._exchange_codes(self._functions, self._new_codes, None)
        for space, names, own_values, new_values, patch in self._names:
            if not self._exchange_names(space, names, new_values, own_values):
                patch.apply()

    def undo(self) -> None:
        """Put the originals back; an object that somebody else has changed meanwhile stays."""
        self._exchange_codes(self._functions, self._own_codes, self._new_codes)
        for space, names, own_values, new_values, patch in self._names:
            if not self._exchange_names(space, names, own_values, new_values):
                patch.undo()


def part(framework: str) -> CompiledPart:
    """Return the loops in C as a part of a framework's adapter; the module has what `Exchange` has."""
    return CompiledPart.extension(framework, "the compiled exchange of functions", "unamp_exchanging", _SOURCE)


def build_hint(part: CompiledPart, times: str) -> str | None:
    """Return the command that builds the loops, where they are not built and could be; None elsewhere, and where not wanted.

    Args:
        part: the loops.
        times: how many times as long regions take without: ``"twice"``.
    """
    if not part.can_be_built():
        return None
    return (
        f"unamp opens and closes regions in Python here, which takes {times} as long as in C: "
        f"{part.command} builds that, once, in a second"
    )
