"""Errors that name our argument where a call uses another framework's name for it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from unamp._function_types import F


def also_called(what: str, **ours: str) -> Callable[[F], F]:
    """Return a decorator whose error for another framework's keyword names our argument.

    Args:
        what: the class or function that is called, for the message.
        ours: our name of the argument, by each name that other frameworks have for it.
    """

    def mark(function: F) -> F:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            for name in kwargs:
                if name in ours:
                    raise TypeError(
                        f"{what} has no argument {name!r}; did you mean {ours[name]!r}?"
                    )
            return function(*args, **kwargs)

        return called  # type: ignore[return-value]

    return mark
