"""Where Paddle's forward functions are bound: modules of Paddle and of others that got one when they were imported.

A forward function is C++, so it has no code to exchange: every name for it has to stand for something else while a region is
open. A name that a module's own functions read is exchanged in the module's dictionary. Most are only there for others to look
up; for those the module gets a class with properties, which costs one assignment however many they are.
"""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Set
from functools import cache
from typing import Any

from unamp.adapter.patching import Patch
from unamp.adapter.replacing import NamesPatch, PropertiesPatch
from unamp_paddle.calls import entry
from unamp_paddle.listing import BUILTIN, forward, legacy

__all__ = ["everywhere", "found"]

#: Modules that users take forward functions from, as attributes, where this Paddle has them.
_MODULES = ("paddle._C_ops", "paddle._legacy_C_ops", "paddle.tensor", "paddle.tensor.ops", "paddle.linalg", "paddle.special")
#: Modules whose own names for forward functions must stay: they are, differentiate or carry out what is computed.
_NOT_SWEPT = (
    "libpaddle", "paddle._pir_ops", "decomposition", "primitives", "composite_rules", "paddle.pir", "paddle.optimizer",
    "unamp_paddle",
)  # fmt: skip

#: Instructions that read a global, and names of functions that may read any.
_READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_UNREADABLE = frozenset({"globals", "vars", "eval", "exec"})

_swept: dict[str, object] = {}
_found: list[Patch] = []


@cache
def _entries() -> Mapping[int, Callable[..., Any]]:
    """Return the replacement of forward functions, by their ids."""
    return {id(operator.call): entry(operator) for operator in (*forward().values(), *legacy().values())}


def _bound(space: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names in a dictionary that stand for forward functions, and what is called in their place."""
    entries = _entries()
    return {k: entries[id(v)] for k, v in list(space.items()) if type(v) is BUILTIN and id(v) in entries}


@cache
def everywhere() -> tuple[Patch, ...]:
    """Return the patches of the modules that users take forward functions from."""
    modules = [sys.modules[path] for path in _MODULES if path in sys.modules]
    return tuple(PropertiesPatch(module, _bound(vars(module))) for module in modules)


def found() -> tuple[Patch, ...]:
    """Return the patches of all other modules that have been imported by now."""
    for name, module in list(sys.modules.items()):
        space = getattr(module, "__dict__", None)
        if not isinstance(space, dict) or _swept.get(name) is module:
            continue
        _swept[name] = module
        if name in _MODULES or any(part in name for part in _NOT_SWEPT):
            continue
        if held := _bound(space):
            read = _read_by_itself(module, frozenset(held))
            if own := {k: v for k, v in held.items() if k in read}:
                _found.append(NamesPatch(space, own))
            if others := {k: v for k, v in held.items() if k not in read}:
                _found.append(PropertiesPatch(module, others, looked_up_often=False))
    return tuple(_found)


def _read_by_itself(module: types.ModuleType, names: Set[str]) -> Set[str]:
    """Return the names that functions of a module may read as globals: all, where that cannot be told."""
    spec = getattr(module, "__spec__", None)
    get_code = getattr(getattr(spec, "loader", None), "get_code", None)
    if type(module) is not types.ModuleType or get_code is None:
        return names
    try:
        compiled = get_code(module.__name__)
    except ImportError:
        compiled = None
    if compiled is None:
        return names
    # Functions that were made by running a string are in no file.
    made = [value.__code__ for value in vars(module).values() if isinstance(value, types.FunctionType)]
    made = [own for own in made if own.co_filename != compiled.co_filename]
    unread = set(names)
    for code in (*_within(compiled), *made, *(inner for own in made for inner in _within(own))):
        if not _UNREADABLE.isdisjoint(code.co_names):
            return names
        if not unread.isdisjoint(code.co_names):  # attributes are among them
            unread.difference_update(i.argval for i in dis.get_instructions(code) if i.opname in _READS)
    return names - unread


def _within(code: types.CodeType) -> Iterator[types.CodeType]:
    """Give the code of the functions that are defined in other code, at any depth."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _within(constant)
