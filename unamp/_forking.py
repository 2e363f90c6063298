"""Handlers for forks: those of locks and patches run in one order, and regions open again last."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable

Function = Callable[[], object]

_handlers: list[dict[str, Function | None]] = []
_forking = threading.local()
_last: list[Function] = []


def at_fork(
    *,
    before: Function | None = None,
    after_in_parent: Function | None = None,
    after_in_child: Function | None = None,
) -> None:
    """Have functions called when the process forks, as `os.register_at_fork` does.

    Where nothing forks, nothing is called.
    """
    _handlers.append(
        {"before": before, "after_in_parent": after_in_parent, "after_in_child": after_in_child}
    )


def last_in_child(function: Function) -> None:
    """Have a function called in a forked process after all others, whenever registered."""
    _last.append(function)


def _before() -> None:
    _forking.handlers = tuple(_handlers)  # another thread may add some while this one forks
    _call_each(each["before"] for each in reversed(_forking.handlers))


def _after_in_parent() -> None:
    _call_each(each["after_in_parent"] for each in _forking.handlers)


def _after_in_child() -> None:
    _call_each(each["after_in_child"] for each in _forking.handlers)
    _call_each(_last)


def _call_each(functions: Iterable[Function | None]) -> None:
    """Call functions, and print what one raises: the others must still release their locks."""
    for function in filter(None, functions):
        try:
            function()
        except BaseException:
            sys.excepthook(*sys.exc_info())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
    )
