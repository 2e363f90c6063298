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
from unamp.errors import FrameworkNotSupported


class Patch(Protocol):
    """A replacement of something of the framework's; see `unamp.adapter.replacing`."""

    def apply(self) -> None:
        """Replace the original."""

    def undo(self) -> None:
        """Put back what was there. What somebody else has put there in the meantime stays."""


class Patches:
    """Patches that are applied while anybody needs them, in whichever thread.

    A process that is forked while a region is open starts without any; the region opens again in it
    (see `unamp.regions`).

    Args:
        base: gives what everybody needs; it is asked each time that the first one comes.
        forget: lets go, in a forked process, of what the adapter knows about the forking thread.
        beside: other patches, which are applied for everybody who needs these.

    Attributes:
        open: how many need them: how many regions are open.
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
            key: stands for what is needed besides; with a key that is known nothing more is asked.
            further: gives what that is.

        Raises:
            Exception: whatever a patch raises that cannot be applied; nothing has changed then.
        """
        with self._lock:
            self.open += 1
            try:
                if self.open == 1:
                    for patch in self._base():
                        self.applied.append(patch)  # first: what raises halfway is undone, too
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
    for part in path.split("."):
        value = getattr(value, part, None)
    return value


def missing(framework: str, version: str, what: str) -> FrameworkNotSupported:
    """Return the error for a private part that a patch needs and this version does not have."""
    return FrameworkNotSupported(f"{framework} {version} has no {what}, which unamp needs")
