"""Code that stands in for a function, for frameworks that bind arguments by its signature."""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping

from unamp.adapter.replacing import code_of


def forwarding(
    function: types.FunctionType, call: str, constants: Mapping[str, object]
) -> types.CodeType:
    """Return code that takes a function's arguments and hands them on.

    Args:
        function: the function whose signature the code has.
        call: the Python expression that the code calls.
        constants: the values of names in `call`, as `unamp.adapter.replacing.code_of` takes them.
    """
    code = function.__code__
    positional = code.co_varnames[: code.co_argcount]
    named = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    rest = iter(code.co_varnames[code.co_argcount + code.co_kwonlyargcount :])
    head, given = list(positional), list(positional)
    if code.co_posonlyargcount:
        head.insert(code.co_posonlyargcount, "/")
    if code.co_flags & inspect.CO_VARARGS:
        name = next(rest)
        head.append(f"*{name}")
        given.append(f"*{name}")
    elif named:
        head.append("*")
    head += named
    given += [f"{name}={name}" for name in named]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        name = next(rest)
        head.append(f"**{name}")
        given.append(f"**{name}")
    source = f"def stand_in({', '.join(head)}):\n return {call}({', '.join(given)})\n"
    return code_of(source, constants, closed_over=len(code.co_freevars))
