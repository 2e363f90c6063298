"""The places where Paddle's forward functions are bound.

They are modules of Paddle, and others that got a forward function when they were imported.

A forward function is C++, so it has no code to exchange: every name for it has to stand for
something else while a region is open. That is an entry in the dictionary of the module that has the
name. The modules that users take forward functions from have a thousand of them, so for as long
these get a class with properties, which costs one assignment.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache

from unamp._function_types import Function
from unamp.adapter.patching import Patch
from unamp.adapter.replacing import NamesPatch, PropertiesPatch
from unamp_paddle.calls import entry
from unamp_paddle.listing import BUILTIN, forward, legacy

#: Modules that users take forward functions from, as attributes, where this Paddle has them.
_MODULES = (
    "paddle._C_ops",
    "paddle._legacy_C_ops",
    "paddle.tensor",
    "paddle.tensor.ops",
    "paddle.linalg",
    "paddle.special",
)
#: Modules whose own names for forward functions must stay: they are, differentiate or carry out
#: what is computed.
_NOT_SWEPT = (
    "libpaddle", "paddle._pir_ops", "decomposition", "primitives", "composite_rules",
    "paddle.pir", "paddle.optimizer", "unamp_paddle",
)  # fmt: skip

_swept: dict[str, object] = {}
_found: list[Patch] = []


@cache
def _entries() -> Mapping[int, Function]:
    """Return the replacement of forward functions, by their ids."""
    return {
        id(operator.call): entry(operator) for operator in (*forward().values(), *legacy().values())
    }


def _bound(space: Mapping[str, object]) -> dict[str, Function]:
    """Return a dictionary's names for forward functions, with the functions that replace them."""
    entries = _entries()
    return {
        k: entries[id(v)] for k, v in list(space.items()) if type(v) is BUILTIN and id(v) in entries
    }


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
            _found.append(NamesPatch(space, held))
    return tuple(_found)
