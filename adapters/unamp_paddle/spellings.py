"""The names of Paddle's functions and layer classes, for a user's lists that hold the objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import paddle

from unamp.adapter.spellings import ObjectNames, at_path

#: Names of legacy kernels that are another function today, with the spelling of that function.
_HOMONYMS = {"mul": "multiply"}


def named(path: str) -> Any:
    """Return the object in `paddle` for a spelling; None where this version has no such name."""
    return None if path in _HOMONYMS else at_path(paddle, path)


def spelling(value: object) -> str | None:
    """Return the name of a function or layer class, with the framework in front; else None."""
    return _NAMES.spelling(value)


def _places(path: str) -> Iterator[object]:
    yield named(path)
    yield vars(paddle._C_ops).get(path)


_NAMES = ObjectNames(
    "paddle", _places, [(getattr(paddle, name), other) for name, other in _HOMONYMS.items()]
)
