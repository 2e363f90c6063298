"""The names of MindSpore's functions, layer classes and primitives, for lists that hold objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import mindspore
from mindspore import Tensor, ops
from mindspore.ops import Primitive, auto_generate

from unamp.adapter.spellings import ObjectNames, at_path
from unamp.vocabulary import vocabulary


def named(path: str) -> Any:
    """Return the object in `mindspore` for a spelling; None where this version has none."""
    return at_path(mindspore, path)


def primitive(name: str) -> type | None:
    """Return the class of the primitive with a name; None without one."""
    for home in (auto_generate, ops.operations, ops):
        found = getattr(home, name, None)
        if isinstance(found, type) and issubclass(found, Primitive):
            return found
    return None


def spelled() -> Mapping[str, str]:
    """Return the operation for each of MindSpore's spellings."""
    return vocabulary().spelled("mindspore")


def spelling(value: object) -> str | None:
    """Return the name of a function, layer class or primitive, with the framework in front.

    None for anything else.
    """
    if isinstance(value, Primitive):  # an instance stands for its class
        return _NAMES.spelling(type(value)) or (
            f"mindspore.{value.name}" if value.name in spelled() else None
        )
    return _NAMES.spelling(value)


def _places(path: str) -> Iterator[object]:
    yield named(path) if "." in path else primitive(path)
    head, _, name = path.partition(".")
    if head in ("mint", "ops"):
        yield getattr(Tensor, name, None)


_NAMES = ObjectNames("mindspore", _places)
