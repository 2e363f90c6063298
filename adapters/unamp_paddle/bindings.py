"""The module attributes that are Paddle's forward functions, and the patches that replace them.

A forward function is C++ and has no code to exchange, so every name for it is bound to its
replacement while a region is open: in Paddle's modules, and in any module that imported it.

The modules that users take forward functions from have a thousand such names. Setting each would
make regions slow to open, so these modules get a class with properties instead: one assignment.
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
#: Modules whose names for forward functions must stay: they implement, differentiate or decompose
#: operations, or they update parameters.
_NOT_SWEPT = (
    "libpaddle", "paddle._pir_ops", "decomposition", "primitives", "composite_rules",
    "paddle.pir", "paddle.optimizer", "unamp_paddle",
)  # fmt: skip

_swept: dict[str, object] = {}
_found: list[Patch] = []


@cache
def _entries() -> Mapping[int, Function]:
    """Return the replacements of the forward functions, by the functions' ids."""
    return {
        id(operator.call): entry(operator) for operator in (*forward().values(), *legacy().values())
    }


def _bound(space: Mapping[str, object]) -> dict[str, Function]:
    """Return the names in a module's dictionary for forward functions, with the replacements."""
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
