"""Functions of MindSpore that only hand their arguments on: what they call is exchanged, so they need not be."""

from __future__ import annotations

import dis
import types
from typing import Any

from mindspore.common._register_for_tensor import tensor_operator_registry

__all__ = ["calls_super", "handed_to", "spread_to"]

#: Bytes of code: a function with more does something else besides. To look at all of them takes half a second.
_SHORT = 200
_SILENT = frozenset(("CACHE", "COPY_FREE_VARS", "PRECALL", "PUSH_NULL", "RESUME"))
_ATTRIBUTE = frozenset(("LOAD_ATTR", "LOAD_METHOD"))
_ARGUMENT = frozenset(("KW_NAMES", "LOAD_CONST", "LOAD_FAST"))
_SPREADING = ("LOAD_GLOBAL", "LOAD_FAST", "BUILD_MAP", "LOAD_FAST", "DICT_MERGE", "CALL_FUNCTION_EX", "RETURN_VALUE")
_SUPER = frozenset(("CALL", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_SUPER_ATTR", "RETURN_VALUE")) | _ATTRIBUTE | _ARGUMENT


def handed_to(function: types.FunctionType) -> Any:
    """What a function calls that does nothing else than to call it with arguments as they are; None for others."""
    steps = _steps(function) if len(function.__code__.co_code) < _SHORT else ()
    if not steps or steps[0].opname != "LOAD_GLOBAL":
        return None
    target, at = function.__globals__.get(steps[0].argval), 1
    while steps[at].opname in _ATTRIBUTE:
        target, at = getattr(target, steps[at].argval, None), at + 1
    if target == tensor_operator_registry.get and [step.opname for step in steps[at : at + 2]] == ["LOAD_CONST", "CALL"]:
        target, at = getattr(tensor_operator_registry, steps[at].argval, None), at + 2
    *arguments, call, end = (step.opname for step in steps[at:])
    return target if (call, end) == ("CALL", "RETURN_VALUE") and _ARGUMENT.issuperset(arguments) else None


def spread_to(function: types.FunctionType) -> Any:
    """What of C++ a function calls that does nothing else, whatever its arguments are; None for others."""
    names = function.__code__.co_names
    if len(names) != 1 or tuple(step.opname for step in _steps(function)) != _SPREADING:
        return None
    target = function.__globals__.get(names[0])
    return None if isinstance(target, types.FunctionType) else target


def calls_super(method: types.FunctionType) -> bool:
    """Whether a method does nothing but call the inherited one with arguments and attributes."""
    if method.__code__.co_names[:2] != ("super", method.__name__):
        return False
    steps = _steps(method)
    return [s.argval for s in steps if s.opname == "LOAD_GLOBAL"] == ["super"] and _SUPER.issuperset(s.opname for s in steps)


def _steps(function: types.FunctionType) -> list[dis.Instruction]:
    return [step for step in dis.get_instructions(function) if step.opname not in _SILENT]
