"""The composite operations and layers that spellings name, in JAX and imported libraries."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import types
from collections.abc import Iterator
from functools import cache
from typing import Any

from jax import custom_jvp, custom_vjp

from unamp import amp_warnings
from unamp._function_types import Function
from unamp.adapter.patching import Patch, find
from unamp_jax.composites import Composite, code_patch
from unamp_jax.layer_calls import patch_of
from unamp_jax.shadowing import dot_general
from unamp_jax.spellings import library_of, named, spelled

#: The operations that have rules of differentiation of their own, by the ids of their functions.
with_rules: dict[int, Composite] = {}

_taken: set[int] = set()


@cache
def patches_of(library: str) -> tuple[Patch, ...]:
    """Return the patches of a library's functions and of its layers' methods.

    A function with two names is patched under the first. Each patch is made once: made again while
    it is applied, it would take the replacement for the original.

    Args:
        library: one of `unamp_jax.spellings.libraries`.
    """
    made: list[Patch] = []
    layers: dict[types.FunctionType, dict[type, tuple[str, str]]] = {}
    for op, path in spelled():
        value = named(path) if library_of(path) == library else None
        if isinstance(value, type):
            method = inspect.getattr_static(
                value, "call" if library == "keras" else "__call__", None
            )
            # equinox keeps its methods in objects of its own
            function = innermost(getattr(method, "method", method))
            if isinstance(function, types.FunctionType):
                layers.setdefault(function, {}).setdefault(value, (op, path))
        elif value is not None:
            made += _of_function(op, path, innermost(value))
    return (*made, *(patch_of(function, of) for function, of in layers.items()))


def _of_function(op: str, path: str, inner: object) -> Iterator[Patch]:
    if id(inner) in _taken:
        return
    _taken.add(id(inner))
    if isinstance(inner, (custom_jvp, custom_vjp)):
        with_rules[id(inner)] = Composite(op, path, inner)
    elif isinstance(inner, types.FunctionType):
        composite = Composite(op, path, inner)

        def replacement(original: Function) -> Composite:
            composite.call = dot_general(original) if path == "lax.dot_general" else original
            return composite

        yield code_patch(inner, replacement)


def innermost(value: Any) -> object:
    """Return the Python function under `jax.jit` and wrappers, or the object with rules there."""
    for _ in range(8):
        if isinstance(value, (custom_jvp, custom_vjp)):
            return value
        inner = getattr(value, "__wrapped__", None)
        if inner is None and type(value).__name__ == "ufunc":
            inner = value.__dict__.get("_func") or value._ufunc__static_props["func"]
        if inner is None:
            return value
        value = inner
    return value


def hook(library: str, module: str, path: str) -> object:
    """Return a private part of a library; None, with a warning, if the imported version has none.

    There is no warning for a module that is not imported yet: nobody can call its functions.

    Args:
        library: the name of the library's package, or of one inside it.
        module: the module's name.
        path: the names from there on, with dots between them.
    """
    found = find(module, path)
    if found is None and library != "jax" and (module in sys.modules or not _exists(module)):
        package = library.partition(".")[0]
        version = str(getattr(sys.modules[package], "__version__", "of an unknown version"))
        amp_warnings.has_no_hook(f"{package} {version}", f"{module}.{path}")
    return found


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of its package
        return False
