"""Standing in for methods: what a Tensor inherits from C++ is covered by an attribute of the class itself.

For functions of Python code see `unamp.replacing`.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any

__all__ = ["Methods"]


class Methods:
    """Methods of a class that are something else while this is in, operators among them.

    An assignment to a class forgets what Python remembers of the class, and sees to the slots of its operators. That is done
    for the operators; all others go to the class's dictionary directly, before.
    """

    __slots__ = ("_operators", "_others", "_own", "_space", "_type")

    def __init__(self, of: type, instead: Mapping[str, Any]) -> None:
        self._type = of
        self._space = gc.get_referents(vars(of))[0]
        self._operators = {name: value for name, value in instead.items() if name.startswith("__")}
        if not self._operators:
            raise TypeError(f"{of.__name__}: no operator among the methods")
        self._others = {name: value for name, value in instead.items() if name not in self._operators}
        self._own = {name: vars(of)[name] for name in instead if name in vars(of)}

    def put_in(self) -> None:
        """Be the replacements from now on."""
        self._space.update(self._others)
        for name, value in self._operators.items():
            setattr(self._type, name, value)

    def take_out(self) -> None:
        """Be the originals again; somebody who changed one in the meantime keeps their change."""
        space, own = self._space, self._own
        for name, instead in self._others.items():
            if space.get(name) is instead:
                if name in own:
                    space[name] = own[name]
                else:
                    del space[name]
        for name, instead in self._operators.items():
            held = space.get(name)
            if held is instead and name not in own:
                delattr(self._type, name)
            elif held is not None:  # assigned even where it stays: what Python remembers of the others must be forgotten
                setattr(self._type, name, own[name] if held is instead else held)
