"""The open regions of each thread, for the code that opens, closes and interrupts them."""

from __future__ import annotations

import threading
from typing import Any


class _ThreadState(threading.local):
    """The open regions of one thread, outermost first.

    Each entry is a region, its realisations, and the tokens that these take on exit.
    """

    def __init__(self) -> None:
        self.open: list[tuple[Any, tuple[Any, ...], list[object]]] = []


state = _ThreadState()


def open_regions() -> int:
    """Return the number of regions that are open in this thread. For adapters."""
    return len(state.open)


def close_down_to(depth: int) -> tuple[Any, ...]:
    """Close this thread's innermost regions until `depth` are open; return those closed.

    The outermost comes first. For adapters whose compilers stop half-way, and for interrupted code
    that opens the regions again: a generator at its next step, a forked process.
    """
    closed: list[Any] = []
    while len(state.open) > depth:
        region, realisations, tokens = state.open.pop()
        closed.insert(0, region)
        leave(realisations, tokens)
    return tuple(closed)


def leave(realisations: tuple[Any, ...], tokens: list[object]) -> None:
    """Exit the realisations of a policy, the last first.

    Where one raises an error, the others exit all the same.
    """
    while tokens:
        realisation = realisations[len(tokens) - 1]
        try:
            realisation.exit(tokens.pop())
        except BaseException:
            leave(realisations, tokens)
            raise
