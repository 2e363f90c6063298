"""Patches for code that no rule reaches: optimizers made of closures, initial values, and a layer's name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from unamp.adapter.patching import Patch, Patches, find
from unamp.adapter.replacing import AttributePatch
from unamp.adapter.state import suspended, suspending
from unamp_jax import keras_policies
from unamp_jax.finding import hook
from unamp_jax.state import CONTEXT, thread

__all__ = ["converting", "layer_calls", "patches"]

Function = Callable[..., Any]


def patches(library: str) -> Iterator[Patch]:
    """Return the patches of a library that is imported."""
    if library == "optax":  # a tuple of closures: they are wrapped as they are asked for
        transformation = find("optax", "GradientTransformation")
        yield AttributePatch(transformation, "init", _suspended_field)
        yield AttributePatch(transformation, "update", _suspended_field)
    made_by = hook(library, *_MADE_BY[library]) if library in _MADE_BY else None
    if made_by is not None:
        yield AttributePatch(made_by, "__call__", _making)
    if library == "keras":
        yield from keras_policies.patches()


#: The classes of classes of layers: a layer is made of initial values, which follow no rule.
_MADE_BY = {"flax.nnx": ("flax.nnx.pytreelib", "PytreeMeta"), "equinox": ("equinox._module._module", "_ModuleMeta")}


def _making(original: Function) -> Function:
    """Return the replacement of what makes a layer: no policy is in force, but for the functions that it converts."""

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        plan = thread.plan
        if plan is None:
            return original(*args, **kwargs)
        outer, thread.made_under = thread.made_under, plan
        try:
            with suspended(thread):
                return original(*args, **kwargs)
        finally:
            thread.made_under = outer

    return make


def converting(original: Function) -> Function:
    """Return the replacement of `equinox.filter_closure_convert`.

    A function that is traced as a module is made is no initial value: linear operators are such modules.
    """

    def convert(*args: Any, **kwargs: Any) -> Any:
        plan = thread.made_under if thread.plan is None else thread.plan
        with CONTEXT(plan):
            return original(*args, **kwargs)

    return convert


def _suspended_field(own: Any) -> property:
    return property(lambda self: suspending(thread)(own.__get__(self)))


def layer_calls(
    homes: Iterable[Any],
    follow: Callable[[Function], Function],
    which: Callable[[type], bool] = lambda kind: True,
    others: Iterable[Patch] = (),
) -> Patches:
    """Return the patches by which calls of layers are followed, of the base classes of layers that there are.

    The classes that exist then are patched, each by its own method: the base classes have none that is always called.

    Args:
        homes: the base classes; None where a library is not imported.
        follow: returns the replacement of such a method.
        which: says of a class whether it is to be patched.
        others: patches besides.
    """
    bases = [home for home in homes if home is not None]

    def base() -> Iterable[Patch]:
        kinds = filter(which, _calling(bases))
        return [*(AttributePatch(kind, "__call__", functools.partial(_followed, follow)) for kind in kinds), *others]

    return Patches(base)


def _followed(follow: Callable[[Function], Function], own: Any) -> Any:
    if hasattr(own, "__get__") and not hasattr(own, "__code__"):  # equinox keeps methods in objects of its own
        return follow(lambda self, *args, **kwargs: own.__get__(self, type(self))(*args, **kwargs))
    return follow(own)


def _calling(bases: list[Any]) -> Iterator[type]:
    seen: set[type] = set()
    waiting = list(bases)
    while waiting:
        kind = waiting.pop()
        if kind not in seen:
            seen.add(kind)
            waiting += type.__subclasses__(kind)
            if "__call__" in vars(kind):
                yield kind
