"""Standing in for methods: what a Tensor inherits from C++ is covered by an attribute of the class itself.

For functions of Python code see `unamp.replacing`.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

__all__ = ["Methods"]


class Methods:
    """Methods that a class inherits, and that are something else while this is in; operators may be among them.

    An assignment to a class forgets what Python remembers of the class, and sees to the slots of its operators. Here there
    are many at a time, so all of them but one go to the class's dictionary directly. The slots stay: they call whatever
    function is found, before and after.

    Args:
        of: the class.
        instead: what to put in, by the methods' names. A method that the class has itself by then is somebody else's
            and stays.
    """

    __slots__ = ("_in", "_instead", "_space", "_type", "_values_in")

    def __init__(self, of: type, instead: Mapping[str, Any]) -> None:
        if any(isinstance(getattr(of, name), types.WrapperDescriptorType) for name in instead):
            raise TypeError(f"{of.__name__}: an operator is not a function")
        self._type = of
        self._space = gc.get_referents(vars(of))[0]
        self._instead = dict(instead)
        self._in: dict[str, Any] = {}
        self._values_in = itemgetter(*instead)

    def put_in(self) -> None:
        """Be the replacements from now on."""
        space, instead = self._space, self._instead
        if not space.keys().isdisjoint(instead):
            instead = {name: value for name, value in instead.items() if name not in space}
        self._in = instead
        space.update(instead)
        self._forget()

    def take_out(self) -> None:
        """Be the originals again; somebody who changed one in the meantime keeps their change."""
        space = self._space
        for name in self._in if self._is_untouched() else self._still_in():
            del space[name]
        self._forget()

    def _is_untouched(self) -> bool:
        if self._in is not self._instead:
            return False
        try:
            return self._values_in(self._space) == tuple(self._instead.values())  # type: ignore[no-any-return]
        except KeyError:
            return False

    def _still_in(self) -> list[str]:
        return [name for name, value in self._in.items() if self._space.get(name) is value]

    def _forget(self) -> None:
        """What Python remembers of the class is no longer true: any assignment tells it so."""
        self._type.__doc__ = self._type.__doc__
