"""For adapters: standing in for a function of Python code that others hold already.

The function keeps being the object that it is, and runs other code: whoever holds it, under whatever name and since whenever,
sees the change.
"""

from __future__ import annotations

import re
import textwrap
import types
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

__all__ = ["Code", "Together", "code_of"]

#: Stands for one of the constants, with its name behind, until the code is told which they are.
_MARK = "unamp: "
_HANDING_ON = "def stand_in(*args, **kwargs):\n return CALL(*args, **kwargs)\n"


class Code:
    """A function of Python code that runs other code while this is in.

    Args:
        function: the function.
        replacement: makes what is called in its place, given the original as a function of its own; or what `code_of` gave,
            which runs in its place without being called.
    """

    __slots__ = ("_original", "_replaced", "function", "original")

    def __init__(self, function: types.FunctionType, replacement: Callable[[Any], Any]) -> None:
        self.function = function
        self._original = code = function.__code__
        self.original = types.FunctionType(
            code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        self.original.__kwdefaults__ = function.__kwdefaults__
        instead = replacement(self.original)
        if not isinstance(instead, types.CodeType):
            instead = code_of(_HANDING_ON, {"CALL": instead}, closed_over=len(code.co_freevars))
        self._replaced = instead.replace(
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


def code_of(source: str, constants: Mapping[str, Any], *, closed_over: int = 0) -> types.CodeType:
    """The code of a function, for a place where it cannot look anything up: its globals are those of what it stands in for.

    Args:
        source: the definition of the function.
        constants: what names in it stand for.
        closed_over: how many variables the function closes over that it stands in for.
    """
    code = _marked(source, frozenset(constants), closed_over)
    marks = {_MARK + name: value for name, value in constants.items()}
    return code.replace(co_consts=tuple(marks.get(c, c) if type(c) is str else c for c in code.co_consts))


@cache
def _marked(source: str, constants: frozenset[str], closed_over: int) -> types.CodeType:
    source = re.sub(r"\b[A-Z]+\b", lambda name: repr(_MARK + name[0]) if name[0] in constants else name[0], source)
    if closed_over:
        names = [f"closed_over_{n}" for n in range(closed_over)]
        head, body = re.match(r"\s*(def .*\):\n)(.*)", source, re.DOTALL).groups()  # type: ignore[union-attr]
        inside = re.match(" +", body)[0]  # type: ignore[index]
        closing = f"{head}{inside}if 0: {', '.join(names)}\n{body}"
        source = f"def outer():\n {'='.join(names)}=None\n{textwrap.indent(closing, ' ')}"
    with warnings.catch_warnings():
        # "'str' object is not callable": the mark is exchanged for what is called before the code ever runs.
        warnings.simplefilter("ignore", SyntaxWarning)
        code = compile(source, "<unamp>", "exec")
    for _ in range(2 if closed_over else 1):
        code = next(const for const in code.co_consts if isinstance(const, types.CodeType))
    return code
