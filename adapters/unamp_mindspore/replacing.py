"""Standing in for methods: what a Tensor inherits from C++ is covered by an attribute of the class itself.

For functions of Python code see `unamp.replacing`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Methods"]


class Methods:
    """Methods of a class that are something else while this is in."""

    __slots__ = ("_instead", "_own", "_type")

    def __init__(self, of: type, instead: Mapping[str, Any]) -> None:
        self._type = of
        self._instead = tuple(instead.items())
        self._own = tuple((name, vars(of).get(name)) for name in instead)

    def put_in(self) -> None:
        """Be the replacements from now on."""
        for name, value in self._instead:
            setattr(self._type, name, value)

    def take_out(self) -> None:
        """Be the originals again; somebody who changed one in the meantime keeps their change."""
        held = vars(self._type)
        for (name, own), (_, instead) in zip(self._own, self._instead, strict=True):
            if held.get(name) is not instead:
                continue
            if own is None:
                delattr(self._type, name)
            else:
                setattr(self._type, name, own)
