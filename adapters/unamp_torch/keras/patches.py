"""The patches of Keras in a region: layers, variables, functions, and code that no rule reaches."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from itertools import starmap
from types import FunctionType
from typing import Any, TypeVar

import torch

from unamp._compiler_marks import once_per_trace
from unamp._function_types import Function
from unamp.adapter import keras_metrics
from unamp.adapter.arguments import mapped, within
from unamp.adapter.keras_losses import AddedLosses
from unamp.adapter.keras_models import facts, keras_on, library
from unamp.adapter.keras_policies import HOME, computing_dtype, converting_input
from unamp.adapter.patching import Patch, Patches, find
from unamp.adapter.replacing import AttributePatch, PatchGroup, as_replacement
from unamp.adapter.spellings import at_path
from unamp.regions import region_of_values
from unamp.vocabulary import vocabulary
from unamp_torch.backward import without_policy
from unamp_torch.casting import ELIGIBLE, cast, cast_weight
from unamp_torch.keras.calls import as_one, as_one_operation, function_as_one_operation, inside
from unamp_torch.python_functions import FunctionPatch
from unamp_torch.state import thread

R = TypeVar("R")

#: Groups of operations whose layers and functions are not patched: they call PyTorch's own
#: operators, which follow their rules by themselves, or keep their inputs' dtype in any case.
_LEFT = frozenset({"shape", "creation", "random", "cast"})


def in_use() -> bool | None:
    """Return whether Keras computes with PyTorch; None until Keras has been imported."""
    module = sys.modules.get("keras")
    if module is None or getattr(module.__spec__, "_initializing", False):
        return None
    return keras_on("torch")


@cache
def all_patches() -> tuple[PatchGroup]:
    """Return the patches, as one."""
    hooks = (
        ("keras.src.backend.common.variables", "Variable._maybe_autocast", _parameter),
        (HOME, "DTypePolicy.convert_input", partial(converting_input, _followed, _is_eligible)),
        (HOME, "DTypePolicy.compute_dtype", _compute_dtype),
        ("keras.src.layers.layer", "Layer.add_weight", _initial),
        ("keras", "Variable._initialize", _initial),
        ("keras.src.backend.common.variables", "Variable._deferred_initialize", _initial),
        *(
            (module, path, _suspending)
            for module, paths in facts().suspended.items()
            for path in paths
        ),
        *keras_metrics.hooks(_suspended, _in_region, _widened),
        *_AddedLosses(thread, _suspended, _in_region).hooks(),
    )
    return (PatchGroup([*starmap(_patch, hooks), *_layers(), *_functions()]),)


@cache
def tracing_patches() -> Patches:
    """Return the patches that keep calls out of a trace where Keras only infers shapes."""
    symbolic = _patch(
        "keras.src.layers.layer", "Layer.__call__", partial(_unreported, of=_is_symbolic)
    )
    shapes = _patch("keras.src.backend", "compute_output_spec", _unreported)
    return Patches(lambda: (symbolic, shapes))


def _patch(module: str, path: str, replacement: Callable[[Any], object]) -> Patch:
    """Return the patch of an object at a path in a module; a method's, in the class that has it."""
    owner, _, name = path.rpartition(".")
    home = find(module, owner) if owner else sys.modules[module]
    if isinstance(home, type):
        home = next((each for each in home.__mro__ if name in vars(each)), home)
    return AttributePatch(home, name, replacement)


def _operations() -> Iterator[tuple[str, str, object]]:
    """Yield the operations of Keras, each with its spelling and object.

    The object is None where this version has none of that name.
    """
    for op in vocabulary().values():
        for path in op.spellings.get("tensorflow", ()):
            if path.startswith("keras.") and op.group not in _LEFT:
                yield op.name, path, at_path(library(), path.removeprefix("keras."))


def _functions() -> Iterator[Patch]:
    """Yield the patches of `keras.ops`, activations and losses.

    A function with two names is patched under the first. The functions get other code, since layers
    already refer to them.
    """
    taken: set[FunctionType] = set()
    for op, path, found in _operations():
        if isinstance(found, FunctionType) and found not in taken and op != "control_flow":
            taken.add(found)
            yield FunctionPatch(op, found, partial(function_as_one_operation, op, path))


def _layers() -> Iterator[Patch]:
    """Yield the patches of the methods `call` of layers; several classes may share one."""
    classes: dict[type, tuple[str, str]] = {}
    for op, path, found in _operations():
        if path.startswith("keras.layers.") and isinstance(found, type):
            classes.setdefault(found, (op, path))
    homes: dict[type, None] = {}
    for layer in classes:
        home = next((each for each in layer.__mro__ if "call" in vars(each)), None)
        if home is not None and home.__module__ != "keras.src.layers.layer":
            homes.setdefault(home)
    for home in homes:
        yield AttributePatch(home, "call", partial(as_one_operation, classes))


# --- parameters and inputs ------------------------------------------------------------------------


def _parameter(original: Function) -> Function:
    """Return the replacement of the method that casts a variable as it is read.

    In a layer that is one operation, the variable is cast to that operation's dtype.
    """

    def _maybe_autocast(self: object, value: object) -> object:
        dtype = inside.dtype
        if dtype is None or not isinstance(value, torch.Tensor):
            return original(self, value)
        casts = inside.casts
        if casts is None or torch.compiler.is_compiling():
            return cast(value, dtype)
        if (kept := casts.get(id(value))) is None:  # a loop over time reads it at every step
            kept = casts[id(value)] = value, cast_weight(value, dtype)
        return kept[1]

    return _maybe_autocast


@once_per_trace
def _in_region() -> bool:
    return thread.plan is not None and not thread.plan.delegated and thread.plan.policy.active


def _followed() -> bool:
    """Return whether a region's policy decides here.

    It does so inside an operation, too, where no policy is in force for the parts.
    """
    return inside.whole or _in_region()


def _is_eligible(x: object) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype in ELIGIBLE


def _compute_dtype(original: property) -> property:
    return property(computing_dtype(_followed, original.fget), doc=original.__doc__)  # type: ignore[arg-type] # it has one


# --- what no trace reports ------------------------------------------------------------------------


def _is_symbolic(*args: object, **kwargs: object) -> bool:
    return any(True for _ in within((args, kwargs), library().KerasTensor))


def _unreported(
    original: Function, of: Callable[..., bool] = lambda *args, **kwargs: True
) -> Function:
    """Wrap a function so that no trace reports its calls.

    Args:
        original: the function.
        of: returns whether a call is left out, given its arguments; by default, every call is.
    """

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> object:
        if torch.compiler.is_compiling() or thread.sink is None or not of(*args, **kwargs):
            return original(*args, **kwargs)
        with as_one():
            return original(*args, **kwargs)

    return run


# --- what no rule reaches -------------------------------------------------------------------------


def _initial(original: Function) -> Function:
    """Wrap a function that computes initial values.

    No rule reaches them, and they are no operations of the network.
    """
    return _unreported(_suspending(original))


@as_replacement
def _suspending(original: Callable[..., R], /, *args: Any, **kwargs: Any) -> R:
    """Wrap a function so that it runs with no policy in force, also as a part of a graph."""
    if not _in_region():
        return original(*args, **kwargs)
    with _suspended():
        return original(*args, **kwargs)


def _widened(value: object) -> object:
    """Return nested arguments with low tensors in float32, which keep their Keras masks."""
    to = keras_metrics.keeping_mask(cast)
    return mapped(value, torch.is_tensor, lambda tensor: to(tensor, torch.float32))


@once_per_trace
def _policy_values() -> tuple[object, ...]:
    """Return the values that make the policy in force; a compiler takes no policy as a constant."""
    assert thread.plan is not None
    return thread.plan.policy._values


class _AddedLosses(AddedLosses):
    """The hooks of the functions that add losses up.

    In a graph, where the sum takes the policy out of force, each loss opens a region for it again.
    """

    def adding(self, original: Function) -> Function:
        eagerly = super().adding(original)

        @functools.wraps(original)
        def run(*args: Any, **kwargs: Any) -> object:
            if not _in_region():
                return original(*args, **kwargs)
            outer, inside.around = inside.around, _policy_values()
            try:
                if not torch.compiler.is_compiling():
                    # even so, a loss that it calls may be a graph
                    return eagerly(*args, **kwargs)
                with _suspended():
                    return original(*args, **kwargs)
            finally:
                inside.around = outer

        return run

    def loss(self, original: Function) -> Function:
        eagerly = super().loss(original)

        @functools.wraps(original)
        def run(*args: Any, **kwargs: Any) -> object:
            if not torch.compiler.is_compiling():
                return eagerly(*args, **kwargs)
            if inside.around is None:
                return original(*args, **kwargs)
            with region_of_values(inside.around, "torch"):
                return original(*args, **kwargs)

        return run


@contextmanager
def _suspended() -> Iterator[None]:
    before = inside.dtype
    inside.dtype = None
    try:
        with without_policy():
            yield
    finally:
        inside.dtype = before
