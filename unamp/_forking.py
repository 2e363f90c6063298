"""A process that is forked: who holds locks and patches sees to them in one order, and regions open again at the end."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["at_fork", "last_in_child"]


def _nothing() -> None:
    pass


class _Handlers(NamedTuple):
    before: Callable[[], object]
    after_in_parent: Callable[[], object]
    after_in_child: Callable[[], object]


_handlers: list[_Handlers] = []
_forking: list[_Handlers] = []
_last: list[Callable[[], object]] = []


def at_fork(
    *,
    before: Callable[[], object] = _nothing,
    after_in_parent: Callable[[], object] = _nothing,
    after_in_child: Callable[[], object] = _nothing,
) -> None:
    """Have functions called when the process forks, as `os.register_at_fork` does; where nothing forks, nothing is called."""
    _handlers.append(_Handlers(before, after_in_parent, after_in_child))


def last_in_child(function: Callable[[], object]) -> None:
    """Have a function called in a forked process when all others have been, whenever they were registered."""
    _last.append(function)


def _before() -> None:
    _forking[:] = _handlers  # another thread may add some while the process forks
    for each in reversed(_forking):
        each.before()


def _after_in_parent() -> None:
    for each in _forking:
        each.after_in_parent()


def _after_in_child() -> None:
    for each in _forking:
        each.after_in_child()
    for function in _last:
        function()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
