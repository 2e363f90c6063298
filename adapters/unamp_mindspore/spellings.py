"""The names of MindSpore's functions, layer classes and primitives, for lists that hold the objects themselves."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import mindspore
from mindspore import Tensor, ops
from mindspore.ops import Primitive, auto_generate

from unamp.vocabulary import vocabulary

__all__ = ["named", "primitive", "spelled", "spelling"]


def named(path: str) -> Any:
    """What a spelling of the vocabulary stands for in the package `mindspore`; None where this version has no such name."""
    value: Any = mindspore
    for part in path.split("."):
        value = getattr(value, part, None)
    return value


def primitive(name: str) -> type | None:
    """A primitive's class, by its name."""
    for home in (auto_generate, ops.operations, ops):
        found = getattr(home, name, None)
        if isinstance(found, type) and issubclass(found, Primitive):
            return found
    return None


@cache
def spelled() -> Mapping[str, str]:
    """The operation for each of MindSpore's spellings."""
    return {spelling: op.name for op in vocabulary().values() for spelling in op.spellings.get("mindspore", ())}


def spelling(value: object) -> str | None:
    """The name of a function, layer class or primitive, with the framework in front; None for what is none of these."""
    if isinstance(value, Primitive):  # an instance stands for its class
        return _of_class(type(value)) or (f"mindspore.{value.name}" if value.name in spelled() else None)
    found = _names().get(id(value))
    if found is None and isinstance(value, type):  # a user's own subclass of a layer is that layer
        return _of_class(value)
    return found


def _of_class(value: type) -> str | None:
    return next((name for base in value.__mro__ if (name := _names().get(id(base)))), None)


@cache
def _names() -> Mapping[int, str]:
    names: dict[int, str] = {}
    for path in spelled():
        value = named(path) if "." in path else primitive(path)
        if callable(value):
            names.setdefault(id(value), f"mindspore.{path}")
    for name in dir(Tensor):
        for path in (f"mint.{name}", f"ops.{name}"):
            method = getattr(Tensor, name, None)
            if path in spelled() and callable(method):
                names.setdefault(id(method), f"mindspore.{path}")
    return names
