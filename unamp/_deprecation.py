"""Deprecated names: since when, until when, and what to use instead.

They go on working, and warn with a `DeprecationWarning` for the line that uses them.
docs/public-api.md says for how long; a test fails once the version has come that is to remove one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple


class Deprecation(NamedTuple):
    """The history of a deprecated name or argument.

    A test reads it from the source, so each part must be a literal there.

    Attributes:
        since: the version that warns first, e.g. ``"1.1.0"``.
        until: the version in which it is gone.
        instead: what to use: a name with its module, or the name of an argument.
    """

    since: str
    until: str
    instead: str

    def warn(self, what: str, stacklevel: int) -> None:
        """Warn of `what` for a line of the user's; a `stacklevel` of 1 is the caller of this."""
        message = (
            f"{what} is deprecated since unamp {self.since} and will be gone in {self.until}; "
            f"use {self.instead}"
        )
        warnings.warn(message, DeprecationWarning, stacklevel=stacklevel + 1)


def deprecated_names(module: str, names: Mapping[str, Deprecation]) -> Callable[[str], Any]:
    """Return a `__getattr__` for a module in which some objects were renamed.

    Args:
        module: its `__name__`.
        names: the old names. Each one's `instead` is the new name with its module.
    """

    def found(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        deprecation = names[name]
        deprecation.warn(f"{module}.{name}", 2)
        home, _, new = deprecation.instead.rpartition(".")
        return getattr(import_module(home), new)

    return found
