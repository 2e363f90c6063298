"""Types of functions whose parameters are not known, and of their arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

#: A function whose parameters are not known.
Function: TypeAlias = Callable[..., Any]

#: Positional arguments of such a call.
Args: TypeAlias = Sequence[Any]

#: Keyword arguments of such a call.
Keywords: TypeAlias = dict[str, Any]

#: The type of a function, which a decorator, a registration or a wrapper keeps.
F = TypeVar("F", bound=Function)
