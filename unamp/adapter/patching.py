"""The life of patches: changes of a framework's code while any region of the process is open.

A patch is applied with the first region of the process that needs it and undone with the last. The
kinds of patches are in `unamp.adapter.replacing`.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from unamp._forking import at_fork
from unamp.adapter.spellings import at_path
from unamp.errors import FrameworkNotSupported


class Patch(Protocol):
    """The replacement of one part of a framework; see `unamp.adapter.replacing`."""

    def apply(self) -> None:
        """Replace the original."""

    def undo(self) -> None:
        """Put back the original. A part that somebody else has put there since stays."""


class Patches:
    """Patches that are applied while anybody needs them, in whichever thread.

    A process that is forked while a region is open starts without any; the region opens again in it
    (see `unamp.regions`).

    Args:
        base: returns the patches that every user needs; called each time that a first user comes.
        forget: drops, in a forked process, what the adapter knows about the forking thread.
        beside: other patches, which are applied whenever these are.

    Attributes:
        open: the number of users: of regions that are open.
        applied: the patches that are applied now, the first applied first; always the same list.
    """

    def __init__(
        self,
        base: Callable[[], Iterable[Patch]],
        forget: Callable[[], None] = lambda: None,
        beside: Patches | None = None,
    ) -> None:
        self._base = base
        self._forget = forget
        self._beside = beside
        self._lock = threading.RLock()
        self.open = 0
        self.applied: list[Patch] = []
        self._keys: set[Hashable] = set()
        # Held across the fork, so that no other thread is in the middle of a change that the child
        # would wait for.
        at_fork(
            before=lambda: self._lock.acquire(),
            after_in_parent=lambda: self._lock.release(),
            after_in_child=self._forked,
        )

    def acquire(
        self, key: Hashable = None, further: Callable[[], Iterable[Patch]] | None = None
    ) -> None:
        """Apply the patches for one more user.

        Args:
            key: stands for the further patches; with a known key they are applied already.
            further: returns further patches for this user.

        Raises:
            Exception: whatever a patch raises that cannot be applied; nothing has changed then.
        """
        with self._lock:
            self.open += 1
            try:
                if self.open == 1:
                    for patch in self._base():
                        self.applied.append(patch)  # first, so that one that raises is undone, too
                        patch.apply()
                if further is not None:
                    self.add(key, further)
                if self._beside is not None:
                    self._beside.acquire()
            except BaseException:
                self._let_go()
                raise

    def add(self, key: Hashable, further: Callable[[], Iterable[Patch]]) -> None:
        """Apply further patches, as `acquire` does, without a further user.

        They stay until the last user goes, or `undo`.
        """
        with self._lock:
            if key in self._keys:
                return
            for patch in further():
                if patch not in self.applied:
                    self.applied.append(patch)
                    patch.apply()
            self._keys.add(key)

    def release(self) -> None:
        """Release the patches for one user.

        With the last user all are undone, the last applied first.
        """
        with self._lock:
            if self._beside is not None:
                self._beside.release()
            self._let_go()

    def _let_go(self) -> None:
        self.open -= 1
        if self.open == 0:
            self.undo()

    @contextmanager
    def patched(
        self, key: Hashable = None, further: Callable[[], Iterable[Patch]] | None = None
    ) -> Iterator[None]:
        """Apply the patches, and further ones as `acquire` does, while the context is open."""
        self.acquire(key, further)
        try:
            yield
        finally:
            self.release()

    def undo(self) -> None:
        """Undo all patches, the last applied first."""
        with self._lock:
            while self.applied:
                self.applied.pop().undo()
            self._keys.clear()

    def _forked(self) -> None:
        self._lock, self.open = threading.RLock(), 0
        self._forget()
        self.undo()


def find(module: str, path: str, *, importing: bool = False) -> Any:
    """Return the object that a dotted path leads to in a module; None where it leads nowhere.

    Args:
        module: the module's name.
        path: the names from there on, with dots between them.
        importing: whether to import the module; one that is not imported has nothing in it.
    """
    try:
        value: Any = importlib.import_module(module) if importing else sys.modules.get(module)
    except ImportError:
        return None
    return at_path(value, path)


def missing(framework: str, version: str, what: str) -> FrameworkNotSupported:
    """Return the error for a private part that a patch needs and this version does not have."""
    return FrameworkNotSupported(f"{framework} {version} has no {what}, which unamp needs")
