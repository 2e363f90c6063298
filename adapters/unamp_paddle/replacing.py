"""Standing in for functions, in ways that cost little to put in and take out.

For functions of Python code see `unamp.replacing`. A forward function of C++ is replaced where it is looked up: as an attribute
of a module, and in the modules that bound it when they were imported.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Iterable, Mapping
from typing import Any

from unamp.replacing import Code

__all__ = ["Attributes", "Globals", "Inherited", "Methods", "Together", "functions"]


class Attributes:
    """Attributes of a module that give something else while this is in, at the cost of one assignment.

    The module's class is exchanged for one with a property for each name; properties go before the module's own dictionary.
    """

    __slots__ = ("_class", "_own", "module")

    def __init__(self, module: types.ModuleType, instead: Mapping[str, Any]) -> None:
        self.module = module
        self._own = type(module)
        properties = {name: property({module: value}.__getitem__) for name, value in instead.items()}
        self._class = type(self._own.__name__, (self._own,), {"__module__": self._own.__module__, **properties})

    def put_in(self) -> None:
        """Give the replacements from now on."""
        self.module.__class__ = self._class

    def take_out(self) -> None:
        """Give the module's own attributes again."""
        if type(self.module) is self._class:
            self.module.__class__ = self._own


class Globals:
    """Names in a module's dictionary that stand for something else while this is in."""

    __slots__ = ("instead", "own", "space")

    def __init__(self, space: dict[str, Any], instead: Mapping[str, Any]) -> None:
        self.space = space
        self.instead = dict(instead)
        self.own = {name: space[name] for name in instead}

    def put_in(self) -> None:
        """Stand for the replacements from now on."""
        self.space.update(self.instead)

    def take_out(self) -> None:
        """Stand for the originals again."""
        self.space.update(self.own)


class Together:
    """Many of these at a time, in fewer steps than one by one.

    What is taken out becomes what it was when this was made, whoever changed it since: to look first would cost a fifth of
    opening a region.

    Args:
        codes: functions that run other code.
        spaces: names in modules' dictionaries.
        others: whatever else is put in and taken out.
    """

    __slots__ = ("_codes", "_in", "_out", "_spaces")

    def __init__(self, codes: Iterable[Code], spaces: Iterable[Globals] = (), others: Iterable[Any] = ()) -> None:
        others = tuple(others)
        self._codes = tuple(code.change for code in codes)
        self._spaces = tuple((space.space, space.instead, space.own) for space in spaces)
        self._in = tuple(other.put_in for other in others)
        self._out = tuple(other.take_out for other in others)

    def put_in(self) -> None:
        """Put all of them in."""
        for put_in in self._in:
            put_in()
        for space, instead, _ in self._spaces:
            space.update(instead)
        for function, _, instead in self._codes:
            function.__code__ = instead

    def take_out(self) -> None:
        """Take all of them out."""
        for function, own, _ in self._codes:
            function.__code__ = own
        for space, _, own in self._spaces:
            space.update(own)
        for take_out in self._out:
            take_out()


class Methods:
    """Methods of a class that are something else while this is in.

    An assignment to a class forgets what Python remembers of the class, and sees to the slots of its operators. Here there
    are many at a time, so all of them but one go to the class's dictionary directly. The slots stay: they call whatever
    function the dictionary has, before and after.
    """

    __slots__ = ("_instead", "_own", "_space", "_type")

    def __init__(self, of: type, instead: Mapping[str, Any]) -> None:
        self._type = of
        self._space = gc.get_referents(vars(of))[0]
        self._instead = dict(instead)
        self._own = {name: self._space[name] for name in instead}
        if not all(map(_is_called_by_slot, self._own.values())):
            raise TypeError(f"{of.__name__}: an operator is not a function")

    def put_in(self) -> None:
        """Be the replacements from now on."""
        self._be(self._instead)

    def take_out(self) -> None:
        """Be the originals again."""
        self._be(self._own)

    def _be(self, methods: dict[str, Any]) -> None:
        self._space.update(methods)
        name = next(iter(methods))
        setattr(self._type, name, methods[name])


def _is_called_by_slot(method: Any) -> bool:
    return not isinstance(method, types.WrapperDescriptorType)


class Inherited:
    """A method that a class inherits, and has itself while this is in."""

    __slots__ = ("_method", "_name", "_type")

    def __init__(self, of: type, name: str, method: Any) -> None:
        self._type, self._name, self._method = of, name, method

    def put_in(self) -> None:
        """Have it from now on."""
        setattr(self._type, self._name, self._method)

    def take_out(self) -> None:
        """Inherit it again."""
        delattr(self._type, self._name)


def functions(module: types.ModuleType, ids: Iterable[int]) -> dict[str, Any]:
    """The names in a module's dictionary that stand for one of the objects with these ids."""
    wanted = frozenset(ids)
    return {name: value for name, value in list(vars(module).items()) if id(value) in wanted}
