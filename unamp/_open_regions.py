"""The regions that are open, for each thread: what opens, closes and interrupts them asks here."""

from __future__ import annotations

import threading
from typing import Any


class _ThreadState(threading.local):
    """The open regions of one thread, outermost first.

    Each comes with its realisations, and with what these want back on exit.
    """

    def __init__(self) -> None:
        self.open: list[tuple[Any, tuple[Any, ...], list[object]]] = []


state = _ThreadState()


def open_regions() -> int:
    """Return the number of regions that are open in this thread. For adapters."""
    return len(state.open)


def close_down_to(depth: int) -> tuple[Any, ...]:
    """Close this thread's innermost regions until `depth` are open; return those closed.

    The outermost comes first. For adapters whose compilers stop half-way, and for what is
    interrupted and opens them again.
    """
    closed: list[Any] = []
    while len(state.open) > depth:
        region, realisations, tokens = state.open.pop()
        closed.insert(0, region)
        leave(realisations, tokens)
    return tuple(closed)


def leave(realisations: tuple[Any, ...], tokens: list[object]) -> None:
    """Put back what realisations of a policy replaced, the last first.

    Where one of them raises, the others are still put back.
    """
    while tokens:
        realisation = realisations[len(tokens) - 1]
        try:
            realisation.exit(tokens.pop())
        except BaseException:
            leave(realisations, tokens)
            raise
