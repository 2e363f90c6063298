"""The types of functions of which only the call is known, and of what they are called with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

#: Somebody's function, called with whatever it takes.
Function: TypeAlias = Callable[..., Any]

#: Positional arguments of such a call.
Args: TypeAlias = Sequence[Any]

#: Keyword arguments of such a call.
Keywords: TypeAlias = dict[str, Any]

#: A function that comes back as what it was: decorated, registered, wrapped.
F = TypeVar("F", bound=Function)
