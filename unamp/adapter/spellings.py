"""The spellings of a framework's functions, layer classes and primitives, and the way back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from unamp.vocabulary import vocabulary


def at_path(root: object, path: str) -> Any:
    """Return the object that a dotted path leads to from another; None where it leads nowhere."""
    for part in path.split("."):
        root = getattr(root, part, None)
    return root


class ObjectNames:
    """The spellings of a framework's own objects, for lists that hold the objects themselves.

    They are looked up when first asked for.

    Args:
        framework: the framework's import name.
        places: returns the objects that a spelling of the vocabulary stands for, as far as this
            version has them. An object with several spellings gets the first.
        homonyms: objects that are not what the vocabulary means by their name, each with the
            spelling that is meant.
    """

    def __init__(
        self,
        framework: str,
        places: Callable[[str], Iterable[object]],
        homonyms: Sequence[tuple[object, str]] = (),
    ) -> None:
        self._framework = framework
        self._places = places
        self._homonyms = homonyms

    @cached_property
    def _known(self) -> Mapping[int, tuple[object, str]]:
        """Each object with its spelling, by its id, which stays its own while it is kept here."""
        known = {id(value): (value, spelling) for value, spelling in self._homonyms}
        for spelling in vocabulary().spelled(self._framework):
            for value in self._places(spelling):
                if callable(value):
                    known.setdefault(id(value), (value, spelling))
        return known

    def spelling(self, value: object) -> str | None:
        """Return an object's spelling with the framework in front; None where it has none.

        A user's own subclass of a layer has that layer's spelling.
        """
        found = self._known.get(id(value))
        if found is None and isinstance(value, type):
            found = next(
                (known for base in value.__mro__ if (known := self._known.get(id(base)))), None
            )
        return None if found is None else f"{self._framework}.{found[1]}"
