"""For adapters: what is replaced in a framework while a region is open anywhere in the process."""

from __future__ import annotations

import functools
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

__all__ = ["Change", "Hooks", "inside", "suspended", "suspending"]


class Change(Protocol):
    """Something that stands in for a part of the framework while it is in; see `unamp.replacing.Code`."""

    def put_in(self) -> None:
        """Stand in from now on."""

    def take_out(self) -> None:
        """Undo that."""


class Hooks:
    """What is put in with the first open region of the process and taken out with the last.

    A process that is forked while a region is open, a worker that loads data say, starts without one.

    Args:
        base: gives what every region needs, each time that the first one opens.
        forget: lets go, in a forked process, of what the adapter knows about the forking thread.

    Attributes:
        open: how many regions are open.
    """

    def __init__(self, base: Callable[[], Iterable[Change]], forget: Callable[[], None]) -> None:
        self._base = base
        self._forget = forget
        self._lock = threading.RLock()
        self.open = 0
        self._in: list[Change] = []
        self._keys: set[Any] = set()
        if hasattr(os, "register_at_fork"):
            # Held across the fork, so that no other thread is in the middle of a change that the child would wait for.
            os.register_at_fork(
                before=lambda: self._lock.acquire(), after_in_parent=lambda: self._lock.release(), after_in_child=self._forked
            )

    def acquire(self, key: Any = None, further: Callable[[], Iterable[Change]] | None = None) -> None:
        """A region opens in some thread.

        Args:
            key: stands for what this region needs besides; with one that is known nothing more is asked.
            further: gives what that is.
        """
        with self._lock:
            self.open += 1
            try:
                if self.open == 1:
                    for change in self._base():
                        self._put_in(change)
                if further is not None and key not in self._keys:
                    for change in further():
                        if change not in self._in:
                            self._put_in(change)
                    self._keys.add(key)
            except BaseException:
                self.release()
                raise

    def release(self) -> None:
        """A region closes."""
        with self._lock:
            self.open -= 1
            if self.open == 0:
                self._take_out()

    def _put_in(self, change: Change) -> None:
        change.put_in()
        self._in.append(change)

    def _take_out(self) -> None:
        while self._in:
            self._in.pop().take_out()
        self._keys.clear()

    def _forked(self) -> None:
        self._lock, self.open = threading.RLock(), 0
        self._forget()
        self._take_out()


def inside(module: str, path: str, *, importing: bool = False) -> Any:
    """What a dotted path leads to in a module; None where it leads nowhere.

    Args:
        module: the module's name.
        path: the names from there on, with dots between them.
        importing: whether to import the module; otherwise one that is not imported has nothing in it.
    """
    try:
        value: Any = importlib.import_module(module) if importing else sys.modules.get(module)
    except ImportError:
        return None
    for part in path.split("."):
        value = getattr(value, part, None)
    return value


@contextmanager
def suspended(thread: Any) -> Iterator[None]:
    """No policy is in force in a thread.

    Args:
        thread: the adapter's state of this thread; its ``plan`` is what a region made of its policy.
    """
    plan, thread.plan = thread.plan, None
    try:
        yield
    finally:
        thread.plan = plan


def suspending(thread: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What makes, of a function, one inside which no policy is in force, to stand in for it.

    For what no rule reaches: the backward pass runs in the dtypes of its forward, and updates in those of what they update.

    Args:
        thread: the adapter's state of this thread; see `suspended`.
    """

    def replacement(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:
            if thread.plan is None:
                return original(*args, **kwargs)
            with suspended(thread):
                return original(*args, **kwargs)

        return run

    return replacement
