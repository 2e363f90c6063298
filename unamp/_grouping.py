"""Items by what they have in common."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T")
Key = TypeVar("Key", bound=Hashable)


def grouped(items: Iterable[T], key: Callable[[T], Key]) -> dict[Key, list[T]]:
    """Return items by their keys, in the order in which each key first came up."""
    found: dict[Key, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found
