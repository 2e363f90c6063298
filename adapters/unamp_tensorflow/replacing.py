"""Standing in for functions, in ways that cost little to put in and take out.

A function of Python code keeps being the object that it is, and runs other code: whoever holds it, under whatever name and
since whenever, sees the change.
"""

from __future__ import annotations

import functools
import types
import warnings
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

__all__ = ["Attribute", "Code", "Method", "Together"]

_MARK = "unamp: what stands in"


class Code:
    """A function of Python code that runs other code while this is in.

    Args:
        function: the function.
        replacement: makes what is called in its place, given the original as a function of its own.
    """

    __slots__ = ("_own", "_replaced", "function")

    def __init__(self, function: types.FunctionType, replacement: Callable[[Any], Callable[..., Any]]) -> None:
        self.function = function
        self._own = code = function.__code__
        original = types.FunctionType(
            code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        original.__kwdefaults__ = function.__kwdefaults__
        template = _template(len(code.co_freevars))
        instead = replacement(original)
        self._replaced = template.replace(
            co_consts=tuple(instead if const == _MARK else const for const in template.co_consts),
            co_name=code.co_name,
            co_qualname=code.co_qualname,
            co_filename=code.co_filename,
            co_firstlineno=code.co_firstlineno,
        )

    @property
    def parts(self) -> tuple[types.FunctionType, types.CodeType, types.CodeType]:
        """The function, its own code, and what it runs instead."""
        return self.function, self._own, self._replaced

    def put_in(self) -> None:
        """Run the replacement's code from now on."""
        self.function.__code__ = self._replaced

    def take_out(self) -> None:
        """Run the function's own code again; somebody who changed it in the meantime keeps their change."""
        if self.function.__code__ is self._replaced:
            self.function.__code__ = self._own


@cache
def _template(closed_over: int) -> types.CodeType:
    """Code that hands all arguments on, for a function that closes over so many variables."""
    names = [f"v{n}" for n in range(closed_over)]
    source = f"def outer():\n {'='.join(names) + '=None' if names else 'pass'}\n def stand_in(*args, **kwargs):\n"
    if names:
        source += f"  if 0: {', '.join(names)}\n"
    source += f"  return {_MARK!r}(*args, **kwargs)\n return stand_in\n"
    scope: dict[str, Any] = {}
    with warnings.catch_warnings():
        # "'str' object is not callable": the constant is exchanged for what is called before the code ever runs.
        warnings.simplefilter("ignore", SyntaxWarning)
        exec(compile(source, "<unamp>", "exec"), scope)
    return scope["outer"]().__code__  # type: ignore[no-any-return]


class Attribute:
    """A module's attribute that is something else while this is in, for functions of C++ that are looked up at every call."""

    __slots__ = ("_instead", "_name", "_own", "module")

    def __init__(self, module: types.ModuleType, name: str, instead: Any) -> None:
        self.module = module
        self._name = name
        self._own = vars(module)[name]
        self._instead = instead

    def put_in(self) -> None:
        """Be the replacement from now on."""
        setattr(self.module, self._name, self._instead)

    def take_out(self) -> None:
        """Be the original again; somebody who replaced it in the meantime keeps their change."""
        if vars(self.module)[self._name] is self._instead:
            setattr(self.module, self._name, self._own)


class Method:
    """A method of a class that is something else while this is in, for methods whose signature somebody reads.

    Args:
        of: the class; the method is its own, not inherited.
        name: the method's name.
        replacement: makes what is called in its place, given the original.
    """

    __slots__ = ("_instead", "_name", "_own", "of")

    def __init__(self, of: type, name: str, replacement: Callable[[Any], Callable[..., Any]]) -> None:
        self.of = of
        self._name = name
        self._own = vars(of)[name]
        self._instead = functools.wraps(self._own)(replacement(self._own))

    def put_in(self) -> None:
        """Be the replacement from now on."""
        setattr(self.of, self._name, self._instead)

    def take_out(self) -> None:
        """Be the original again; somebody who replaced it in the meantime keeps their change."""
        if vars(self.of).get(self._name) is self._instead:
            setattr(self.of, self._name, self._own)


class Together:
    """Changes that are put in and taken out in one go: a region opens and closes as fast as these loops run.

    Attributes:
        changes: the changes.
    """

    def __init__(self, changes: Iterable[Attribute | Code | Method]) -> None:
        self.changes = tuple(changes)
        self._others = tuple(change for change in self.changes if not isinstance(change, Code))
        self._codes = tuple(change.parts for change in self.changes if isinstance(change, Code))

    def put_in(self) -> None:
        """Make all of them."""
        for function, _, replaced in self._codes:
            function.__code__ = replaced
        for change in self._others:
            change.put_in()

    def take_out(self) -> None:
        """Undo all of them."""
        for function, own, replaced in self._codes:
            if function.__code__ is replaced:
                function.__code__ = own
        for change in self._others:
            change.take_out()
