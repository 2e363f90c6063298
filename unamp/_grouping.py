"""Groups of items that have the same key."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T")
Key = TypeVar("Key", bound=Hashable)


def grouped(items: Iterable[T], key: Callable[[T], Key]) -> dict[Key, list[T]]:
    """Return the items of each key; the keys are in the order of their first items."""
    found: dict[Key, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found
