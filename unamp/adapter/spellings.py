"""A framework's functions, layer classes and primitives by their spellings, and the other way round."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from unamp.vocabulary import vocabulary


def at_path(root: Any, path: str) -> Any:
    """Return the object that a dotted path leads to from another; None where it leads nowhere."""
    for part in path.split("."):
        root = getattr(root, part, None)
    return root


class ObjectNames:
    """The spellings of a framework's own objects, for lists that hold the objects themselves.

    Args:
        framework: the framework's import name.
        places: gives the objects that a spelling of the vocabulary stands for, as far as this version has them. One that
            stands for several spellings belongs to the first.
        homonyms: objects that are not what the vocabulary means by their name, each with the spelling that is meant.
    """

    def __init__(
        self, framework: str, places: Callable[[str], Iterable[Any]], homonyms: Iterable[tuple[Any, str]] = ()
    ) -> None:
        self._framework = framework
        self._names: dict[int, str] = {}
        self._kept: list[Any] = []  # so that an id stays its object's own
        for value, spelling in homonyms:
            self._names[id(value)] = spelling
            self._kept.append(value)
        for spelling in vocabulary().spelled(framework):
            for value in places(spelling):
                if callable(value):
                    self._names.setdefault(id(value), spelling)
                    self._kept.append(value)

    def spelling(self, value: object) -> str | None:
        """Return an object's spelling with the framework in front; None for what is nothing of the framework's.

        A user's own subclass of a layer is that layer.
        """
        found = self._names.get(id(value))
        if found is None and isinstance(value, type):
            found = next((name for base in value.__mro__ if (name := self._names.get(id(base)))), None)
        return None if found is None else f"{self._framework}.{found}"
