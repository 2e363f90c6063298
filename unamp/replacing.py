"""For adapters: standing in for a function of Python code that others hold already.

The function keeps being the object that it is, and runs other code: whoever holds it, under whatever name and since whenever,
sees the change.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

__all__ = ["Code", "Together"]

_MARK = "unamp: what stands in"


class Code:
    """A function of Python code that runs other code while this is in.

    Args:
        function: the function.
        replacement: makes what is called in its place, given the original as a function of its own.
    """

    __slots__ = ("_original", "_replaced", "function", "original")

    def __init__(self, function: types.FunctionType, replacement: Callable[[Any], Callable[..., Any]]) -> None:
        self.function = function
        self._original = code = function.__code__
        self.original = types.FunctionType(
            code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        self.original.__kwdefaults__ = function.__kwdefaults__
        template = _template(len(code.co_freevars))
        instead = replacement(self.original)
        self._replaced = template.replace(
            co_consts=tuple(instead if const == _MARK else const for const in template.co_consts),
            co_name=code.co_name,
            co_qualname=code.co_qualname,
            co_filename=code.co_filename,
            co_firstlineno=code.co_firstlineno,
        )

    @property
    def change(self) -> tuple[types.FunctionType, types.CodeType, types.CodeType]:
        """The function, its own code, and what it runs instead, for who puts many in at a time."""
        return self.function, self._original, self._replaced

    @property
    def is_in(self) -> bool:
        """Whether the function runs other code than its own."""
        return self.function.__code__ is not self._original

    def put_in(self) -> None:
        """Run the replacement's code from now on."""
        self.function.__code__ = self._replaced

    def take_out(self) -> None:
        """Run the function's own code again; somebody who changed it in the meantime keeps their change."""
        if self.function.__code__ is self._replaced:
            self.function.__code__ = self._original


class Together:
    """Changes that are put in and taken out in one go: a region opens and closes as fast as these loops run.

    Attributes:
        changes: the changes.
    """

    __slots__ = ("_codes", "_others", "changes")

    def __init__(self, changes: Iterable[Any]) -> None:
        self.changes = tuple(changes)
        self._others = tuple(change for change in self.changes if not isinstance(change, Code))
        self._codes = tuple(one.change for one in self.changes if isinstance(one, Code))

    def put_in(self) -> None:
        """Make all of them."""
        for function, _, replaced in self._codes:
            function.__code__ = replaced
        for change in self._others:
            change.put_in()

    def take_out(self) -> None:
        """Undo all of them; somebody who changed one in the meantime keeps their change."""
        for function, own, replaced in self._codes:
            if function.__code__ is replaced:
                function.__code__ = own
        for change in self._others:
            change.take_out()


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
