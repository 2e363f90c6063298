"""Deprecated functions, arguments and names: since when, until when, and what to use instead.

They go on working, and a `DeprecationWarning` comes for the line that uses them. docs/public-api.md says how long; a test fails
where the version is reached in which one is to be gone.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

__all__ = ["Deprecation", "deprecated_argument", "deprecated_function", "deprecated_names"]

F = TypeVar("F", bound=Callable[..., Any])


class Deprecation(NamedTuple):
    """The story of what is deprecated. A test reads it from the source, so each part is written out where it is made.

    Attributes:
        since: the version that warns first, e.g. ``"1.1.0"``.
        until: the version in which it is gone.
        instead: what to use: a name with its module, or the name of an argument.
    """

    since: str
    until: str
    instead: str

    def warn(self, what: str, stacklevel: int) -> None:
        """Warn of `what` for a line of the user's; `stacklevel` counts from the caller of this, which is 1."""
        message = f"{what} is deprecated since unamp {self.since} and will be gone in {self.until}; use {self.instead}"
        warnings.warn(message, DeprecationWarning, stacklevel=stacklevel + 1)


def deprecated_function(deprecation: Deprecation) -> Callable[[F], F]:
    """Return a decorator for a function that does what it did, and warns of each call."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            deprecation.warn(f"{function.__module__}.{function.__qualname__}", 2)
            return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]

    return decorate


def deprecated_argument(name: str, deprecation: Deprecation) -> Callable[[F], F]:
    """Return a decorator for a function whose keyword argument has another name now.

    Args:
        name: the old name, which the function itself does not take any more.
        deprecation: its `instead` is the new name.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if name in kwargs:
                if deprecation.instead in kwargs:
                    both = f"{deprecation.instead}, and {name}, which is its old name"
                    raise TypeError(f"{function.__qualname__}() got {both}; pass {deprecation.instead} alone")
                deprecation.warn(f"the argument {name} of {function.__module__}.{function.__qualname__}", 2)
                kwargs[deprecation.instead] = kwargs.pop(name)
            return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]

    return decorate


def deprecated_names(module: str, names: Mapping[str, Deprecation]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module that has other names for some objects now.

    Args:
        module: its `__name__`.
        names: the old names. Each one's `instead` is the new name with its module, from where it is taken.
    """

    def found(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        deprecation = names[name]
        deprecation.warn(f"{module}.{name}", 2)
        home, _, new = deprecation.instead.rpartition(".")
        return getattr(import_module(home), new)

    return found
