"""The names of Paddle's functions and layer classes, for lists that hold the objects themselves."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import paddle

from unamp.vocabulary import vocabulary

__all__ = ["named", "spelling"]


#: Names of legacy kernels that a function of today has, too, which does what another spelling says.
_HOMONYMS = {"mul": "multiply"}


def named(path: str) -> Any:
    """What a spelling of the vocabulary stands for in the package `paddle`; None where this version has no such name."""
    if path in _HOMONYMS:
        return None
    value: Any = paddle
    for part in path.split("."):
        value = getattr(value, part, None)
    return value


def spelling(value: object) -> str | None:
    """The name of a function or layer class, with the framework in front; None for what is neither."""
    found = _names().get(id(value))
    if found is None and isinstance(value, type):  # a user's own subclass of a layer is that layer
        found = next((name for base in value.__mro__ if (name := _names().get(id(base)))), None)
    return found


@cache
def _names() -> Mapping[int, str]:
    names = {id(getattr(paddle, name)): f"paddle.{other}" for name, other in _HOMONYMS.items() if hasattr(paddle, name)}
    functions = vars(paddle._C_ops)
    for op in vocabulary().values():
        for path in op.spellings.get("paddle", ()):
            for value in (named(path), functions.get(path)):
                if callable(value):
                    names.setdefault(id(value), f"paddle.{path}")
    return names
