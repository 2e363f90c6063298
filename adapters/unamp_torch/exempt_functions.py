"""Functions of PyTorch's that compute what a program keeps: they run with no policy in force.

Scaled losses, learning rates, clipped gradients, averages of parameters, initial values, parameters
that others become (pruned, fused with a norm, without their parametrization, stacked), the vectors
of spectral norms, statistics that processes gather or observers keep, windows, batches, Jacobians,
distributions: none of them is the result of an operation of the vocabulary, so that a policy would
silently round the numbers that they are computed from. Where it would, the functions are replaced
while a region is open (`unamp_torch.python_functions`). `data/exempt.toml` lists them.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from unamp._compiler_marks import once_per_trace
from unamp._function_types import Function
from unamp.adapter.facts import read_facts
from unamp.adapter.patching import find
from unamp.adapter.plans import DRAWING
from unamp.adapter.wrapping import own_methods, with_derived
from unamp.policy import KEPT_POLICIES, Policy, Rule
from unamp.presets import preset
from unamp_torch.backward import in_this_region, without_policy
from unamp_torch.casting import cast, cast_floats
from unamp_torch.compiling import run_uncompiled
from unamp_torch.state import thread
from unamp_torch.stepping import Step

#: Names of functions or methods, by their module or class.
_Named = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class _Table:
    """The contents of ``data/exempt.toml``, which explains them."""

    calling_others: frozenset[str]
    parts: Mapping[str, frozenset[str]]
    functions: Mapping[str, _Named]
    own_methods: Mapping[str, _Named]
    all_methods: Mapping[str, _Named]


_TABLE = read_facts(_Table, "unamp_torch", "data/exempt.toml")
_DRAWING = "drawing"
#: The operations that the functions of each kind compute with.
_PARTS = {**_TABLE.parts, _DRAWING: frozenset(DRAWING)}


class Group:
    """Functions that are replaced and put back in one go: two hundred cost as much as twenty.

    An object without code, which somebody has put in a function's place, is left out.

    Attributes:
        functions: the functions.
    """

    __slots__ = ("functions",)

    def __init__(self, functions: Iterable[object]) -> None:
        self.functions = tuple(filter(None, map(_with_code, functions)))


def _with_code(function: Any) -> FunctionType | None:
    """Return the function behind its decorators; None for an object that has no code."""
    found = None if function is None else inspect.unwrap(function)
    return found if isinstance(found, FunctionType) else None


def _functions(kind: str) -> Iterator[object]:
    """Yield the functions of a kind, and None for those that are not there."""
    for module, paths in _TABLE.functions.get(kind, {}).items():
        yield from (find(module, path) for path in paths)
    for base, names in _classes(_TABLE.own_methods.get(kind, {})):
        yield from own_methods(base, names, _TABLE.calling_others)


def _classes(methods: _Named) -> Iterator[tuple[type, tuple[str, ...]]]:
    """Yield the classes that are there, with the names of their methods."""
    for path, names in methods.items():
        module, _, name = path.rpartition(".")
        if (found := find(module, name)) is not None:
            yield found, names


_GROUPS = {kind: Group(_functions(kind)) for kind in _PARTS}

#: Functions of modules that nobody has imported so far: the kind, the module and the path in it.
_LATER = tuple(
    (kind, module, path)
    for kind, modules in _TABLE.functions.items()
    for module, paths in modules.items()
    if module not in sys.modules
    for path in paths
)


def functions(policy: Policy) -> tuple[tuple[str, FunctionType | Group], ...]:
    """Return the functions that a policy must not reach, each with its kind."""
    kinds = _reached(policy)
    groups = ((kind, group) for kind, group in _GROUPS.items() if kind in kinds)
    methods = (pair for kind in _TABLE.all_methods if kind in kinds for pair in _all_methods(kind))
    return (*groups, *methods, *_imported_later(kinds))


def reaches(policy: Policy) -> bool:
    """Return whether there are any functions that a policy must not reach."""
    return bool(_reached(policy))


@functools.lru_cache(KEPT_POLICIES)
def _reached(policy: Policy) -> frozenset[str]:
    """Return the kinds of functions that a policy would make compute low."""
    if not policy.active or preset(policy.preset).delegates:
        return frozenset()
    low = {op for op, rule in policy.rules.items() if rule in (Rule.LOW, Rule.NARROWEST)}
    return frozenset(kind for kind, parts in _PARTS.items() if not low.isdisjoint(parts))


def _imported_later(kinds: frozenset[str]) -> Iterator[tuple[str, FunctionType]]:
    """Yield the functions of some kinds in those modules of `_LATER` that are imported by now."""
    for kind, module, path in _LATER:
        if kind in kinds and (function := _with_code(find(module, path))) is not None:
            yield kind, function


def _all_methods(kind: str) -> Iterator[tuple[str, FunctionType]]:
    """Yield the methods of a class and of those derived from it.

    Derived classes may come with an import: FSDP's scaler is one.
    """
    for base, names in _classes(_TABLE.all_methods[kind]):
        for derived in with_derived(base):
            for name in names:
                method = vars(derived).get(name)
                if type(method) is FunctionType:  # not one that is inherited, or wrapped
                    yield kind, method


def _scaling(original: Function) -> Function:
    """Return the replacement of a scaler's method: only closures run under the policy."""

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> object:
        if thread.plan is None or thread.plan.delegated:
            return original(*args, **kwargs)
        with Step(nullcontext()) as step:
            args, kwargs = step.handed(args, kwargs)
            return original(*args, **kwargs)

    # dynamo skips the scaler's own methods, and would compile their replacements
    run_uncompiled(replacement)
    return replacement


def _replacement(original: Function) -> Function:
    """Return the replacement of any other function: no policy is in force, also in a graph."""

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> object:
        # Dynamo must not trace into the thread's plan: its graph takes any policy out of force.
        if torch.compiler.is_compiling() or not (thread.plan is None or thread.plan.delegated):
            with without_policy():
                return original(*args, **kwargs)
        return original(*args, **kwargs)

    return replacement


def _filling(original: Function) -> Function:
    """Return the replacement of `vector_to_parameters`.

    In a region it first casts the vector to the dtype of the parameters.
    """

    @functools.wraps(original)
    def replacement(vec: Tensor, parameters: Iterable[Tensor]) -> object:
        if thread.plan is None or thread.plan.delegated:
            return original(vec, parameters)
        kept = list(parameters)
        dtypes = {parameter.dtype for parameter in kept}
        with without_policy():
            return original(vec.to(dtypes.pop()) if len(dtypes) == 1 else vec, kept)

    return replacement


def _differentiating(original: Function) -> Function:
    """Return the replacement of a function that takes gradients of another.

    Only that other function runs under the policy.
    """

    @functools.wraps(original)
    def replacement(func: Function, *args: Any, **kwargs: Any) -> object:
        if thread.plan is None or thread.plan.delegated:
            return original(func, *args, **kwargs)
        func = in_this_region(func)
        with without_policy():
            return original(func, *args, **kwargs)

    run_uncompiled(replacement)  # no graph can hold the call, and dynamo would look inside
    return replacement


def _normalizing(original: Function) -> Function:
    """Return the replacement of the forward pass of `SyncBatchNorm`.

    Its operators have no rule, so its input is cast here, as the rule for `batch_norm` says.
    """
    exempt = _replacement(original)

    @functools.wraps(original)
    def replacement(ctx: Any, input: Tensor, *args: Any) -> object:
        return exempt(ctx, cast(input, _normalized_in(input.device.type) or input.dtype), *args)

    return replacement


@once_per_trace
def _normalized_in(device: str) -> torch.dtype | None:
    """Return the dtype of the rule for `batch_norm` on a device; None where it casts nothing."""
    plan = thread.plan
    policy = None if plan is None or plan.delegated else plan.policy_on(device)
    if plan is None or policy is None:
        return None
    dtypes = {Rule.LOW: plan.low_on(device), Rule.FP32: torch.float32}
    return dtypes.get(policy.rules["batch_norm"])


def _drawing(original: Function) -> Function:
    """Return the replacement of a function of distributions: low tensors are float32 first.

    Each call asks for the policy, as a region whose policy does not reach distributions may be open
    inside another, or in another thread.
    """

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> object:
        if not _draws_in_float32():
            return original(*args, **kwargs)
        with without_policy():
            args = tuple(cast_floats(arg, torch.float32) for arg in args)
            kwargs = {name: cast_floats(arg, torch.float32) for name, arg in kwargs.items()}
            return original(*args, **kwargs)

    return replacement


@once_per_trace
def _draws_in_float32() -> bool:
    """Return whether the policy in force here must not reach distributions."""
    return thread.plan is not None and _DRAWING in _reached(thread.plan.policy)


#: The functions that make the replacement, for each kind.
REPLACING = dict.fromkeys(_PARTS, _replacement) | {
    "scaling": _scaling,
    "filling": _filling,
    "differentiating": _differentiating,
    "normalizing": _normalizing,
    _DRAWING: _drawing,
}
