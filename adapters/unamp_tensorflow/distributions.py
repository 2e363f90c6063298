"""Patches that let a library's distributions and special functions compute in float32 in a region.

TensorFlow has none of its own that are in use; `data/operators.toml` names those of libraries. They
are written for float32 and float64: low tensors become float32 at every level. Where a policy would
make them compute low, the operations inside them follow no rule.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import cache, partial
from types import FunctionType
from typing import Any

import tensorflow as tf

from unamp._function_types import Function
from unamp.adapter.arguments import leaves
from unamp.adapter.patching import find
from unamp.adapter.plans import DRAWING, lowers
from unamp.adapter.replacing import AttributePatch, CodePatch, PatchGroup, Replacement
from unamp.adapter.state import in_regions, suspended
from unamp.adapter.wrapping import own_methods
from unamp_tensorflow.casting import cast, convert, eligible_dtype
from unamp_tensorflow.facts import facts
from unamp_tensorflow.state import FLOAT32, thread


def imported() -> tuple[str, ...]:
    """Return the modules that have distributions or special functions, as far as imported."""
    if not any(map(sys.modules.__contains__, _packages())):
        return ()
    return tuple(filter(sys.modules.__contains__, _modules()))


@cache
def _packages() -> tuple[str, ...]:
    return tuple({path.partition(".")[0] for path in facts().distributions})


@cache
def _modules() -> tuple[str, ...]:
    known = facts()
    classes = (path.rpartition(".")[0] for path in known.distributions)
    return (*classes, *known.probabilities, *known.common_dtypes, *known.special)


@cache
def patches(imported: tuple[str, ...]) -> PatchGroup:
    """Return the patches of what modules have by now; see `imported`."""
    places = {
        _common: _named(facts().common_dtypes),
        _computed: _probabilities(),
        _made: _named(facts().makers, type),
    }
    return PatchGroup(_patch(each, made) for made, found in places.items() for each in found)


@cache
def _patch(place: FunctionType | type, replacement: Replacement) -> CodePatch | AttributePatch:
    # Made once: where more is imported in a region, the place is patched already.
    if isinstance(place, type):
        return AttributePatch(place, "__call__", replacement)
    return CodePatch(place, replacement)


def _named(places: Mapping[str, tuple[str, ...]], kind: Any = FunctionType) -> Iterator[Any]:
    for module, paths in places.items():
        for path in paths:
            if isinstance(found := find(module, path), kind):
                yield found


def _probabilities() -> Iterator[FunctionType]:
    for path, names in facts().distributions.items():
        module, _, name = path.rpartition(".")
        if (base := find(module, name)) is not None:
            yield from own_methods(base, names)
    yield from _named(facts().probabilities)
    for module in filter(sys.modules.__contains__, facts().special):
        for name, found in vars(sys.modules[module]).items():
            own = isinstance(found, FunctionType) and found.__module__ == module
            if own and not name.startswith("_"):
                yield found


@in_regions(thread)
def _common(original: Function, *args: Any, **kwargs: Any) -> object:
    """Find a dtype for arguments: float32 instead of a low one."""
    if thread.plan is not None and thread.plan.policy.active:
        args, kwargs = _wide(args, kwargs)
    return original(*args, **kwargs)


@in_regions(thread)
def _made(original: Function, kind: type, *args: Any, **kwargs: Any) -> object:
    """Make a distribution, in place of the call of its class."""
    own = _is_own_class(kind) and _is_own([args, kwargs])
    return (
        _in_float32(partial(original, kind), args, kwargs)
        if own
        else original(kind, *args, **kwargs)
    )


@in_regions(thread)
def _computed(original: Function, *args: Any, **kwargs: Any) -> object:
    own = _is_own([args, kwargs])
    return _in_float32(original, args, kwargs) if own else original(*args, **kwargs)


def _in_float32(original: Function, args: Any, kwargs: Any) -> object:
    plan = thread.plan
    if plan is None or not plan.policy.active:
        return original(*args, **kwargs)
    args, kwargs = _wide(args, kwargs)
    if not lowers(plan.rule, DRAWING):
        return original(*args, **kwargs)
    with suspended(thread):
        return original(*args, **kwargs)


def _wide(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return arguments in float32; beside a low variable, which stays a parameter, as they are."""
    for value in leaves([args, kwargs]):
        if isinstance(value, tf.Variable) and eligible_dtype(value) not in (0, FLOAT32):
            return args, kwargs
    return convert(cast, FLOAT32, args), convert(cast, FLOAT32, kwargs)


def _is_own(value: object) -> bool:
    """Return whether nothing among arguments is a user's that may hold a network.

    A network follows the policy: so does a distribution that is made of a user's function, or of a
    class that a user derived.
    """
    return all(map(_is_own_leaf, leaves(value)))


def _is_own_leaf(value: Any) -> bool:
    if isinstance(value, FunctionType):
        return _is_of_library(value)
    if not any(map(_is_of_library, type(value).__mro__)):
        return not callable(value) or isinstance(value, tf.DType)
    if not _is_own_class(type(value)):
        return False
    if not hasattr(type(value), "parameters"):
        return not callable(value)
    # A constructor, which may have called this, has not set them yet.
    return not vars(value).get("_parameters") or _is_own(value.parameters)


def _is_own_class(kind: type) -> bool:
    return _is_of_library(kind) and kind.__name__ not in facts().calling_others


def _is_of_library(value: type | FunctionType) -> bool:
    return value.__module__.partition(".")[0] in _packages()
