"""For adapters: what `unamp.trace` asks of those that stand in for a framework's functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from unamp.adapter import OpRecord
from unamp.vocabulary import vocabulary

__all__ = ["observe", "traced"]

#: Groups that are not reported: they move data or make it, in whatever dtype they are told.
_NOT_TRACED = frozenset({"shape", "creation", "random", "cast"})


@cache
def traced(op: str | None) -> bool:
    """Whether an operation computes, so that it is reported."""
    return op is not None and vocabulary()[op].group not in _NOT_TRACED


@contextmanager
def observe(
    thread: Any, sink: Callable[[OpRecord], None], watched: Callable[[], Any], release: Callable[[], None]
) -> Iterator[None]:
    """Report the operations of the calling thread to `sink`; an outer observer waits.

    Args:
        thread: the adapter's state of this thread, with a ``sink`` and a ``plan``; a plan has a ``watched`` one of its own.
        sink: takes the records.
        watched: makes everything known that can be reported, and gives the plan for where no region is open.
        release: undoes that.
    """
    idle = watched()
    before, thread.sink = thread.sink, sink
    plan = thread.plan
    thread.plan = idle if plan is None else plan.watched
    try:
        yield
    finally:
        thread.sink, thread.plan = before, plan
        release()
