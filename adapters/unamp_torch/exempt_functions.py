"""Functions of PyTorch's that compute what a program keeps: they run with no policy in force.

Scaled losses, learning rates, clipped gradients, averages of parameters, initial values, parameters
that others become (pruned, fused with a norm, without their parametrization, stacked), the vectors
of spectral norms, statistics that processes gather or observers keep, windows, batches, Jacobians,
distributions, decompositions by products: none of them is the result of an operation of the
vocabulary, so that a policy would silently round the numbers that they are computed from. Where it
would, the functions are replaced while a region is open (`unamp_torch.python_functions`).
`data/exempt.toml` lists them.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from unamp._compiler_marks import once_per_trace
from unamp._function_types import Function, Keywords
from unamp.adapter.facts import read_facts
from unamp.adapter.patching import find
from unamp.adapter.plans import DRAWING
from unamp.adapter.replacing import Replacement
from unamp.adapter.wrapping import own_methods, with_derived
from unamp.policy import KEPT_POLICIES, Policy, Rule
from unamp.presets import preset
from unamp_torch.backward import in_this_region, without_policy
from unamp_torch.casting import cast, cast_floats
from unamp_torch.compiling import run_uncompiled
from unamp_torch.plans import follows_native_lists
from unamp_torch.state import thread
from unamp_torch.stepping import Step

#: Names of functions or methods, by their module or class.
_Named = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class _Table:
    """The contents of ``data/exempt.toml``, which explains them."""

    parts: frozenset[str]
    calling_others: frozenset[str]
    functions: Mapping[str, _Named]
    own_methods: Mapping[str, _Named]
    all_methods: Mapping[str, _Named]


_TABLE = read_facts(_Table, "unamp_torch", "data/exempt.toml")
_PARTS = _TABLE.parts.union(DRAWING)
#: A function with its kind.
_Exempt = tuple[str, FunctionType]
#: A kind, a module, and the paths of functions in it.
_Place = tuple[str, str, tuple[str, ...]]


@dataclass(eq=False)
class Group:
    """Functions that are replaced and put back in one go, each with its kind."""

    functions: tuple[_Exempt, ...]


def _with_code(kind: str, functions: Iterable[Any]) -> Iterator[_Exempt]:
    """Yield functions without their decorators.

    An object without code, which somebody has put in a function's place, is left out, and so is
    None.
    """
    unwrapped = map(inspect.unwrap, functions)
    return ((kind, each) for each in unwrapped if isinstance(each, FunctionType))


def _functions(places: Iterable[_Place]) -> Iterator[_Exempt]:
    """Yield the functions at paths in modules that are imported."""
    for kind, module, paths in places:
        if module in sys.modules:
            yield from _with_code(kind, (find(module, path) for path in paths))


def _classes(table: Mapping[str, _Named]) -> Iterator[tuple[str, type, tuple[str, ...]]]:
    """Yield the kinds and classes of a table, with the names of their methods."""
    for kind, methods in table.items():
        for path, names in methods.items():
            module, _, name = path.rpartition(".")
            if (found := find(module, name)) is not None:
                yield kind, found, names


def _own_methods() -> Iterator[_Exempt]:
    """Yield the methods of PyTorch's own classes."""
    for kind, base, names in _classes(_TABLE.own_methods):
        yield from _with_code(kind, own_methods(base, names, _TABLE.calling_others))


def _derived(known: Container[type] = ()) -> Iterator[_Exempt]:
    """Yield the methods of `_BASES` and of classes derived from them, except of known ones.

    A user derives classes, and an import brings more: FSDP's scaler is one.
    """
    for kind, base, names in _BASES:
        for derived in with_derived(base):
            if derived not in known:
                methods = (vars(derived).get(name) for name in names)
                # not one that is inherited, or wrapped
                yield from ((kind, each) for each in methods if type(each) is FunctionType)


_PLACES: tuple[_Place, ...] = tuple(
    (kind, module, paths)
    for kind, modules in _TABLE.functions.items()
    for module, paths in modules.items()
)
_BASES = tuple(_classes(_TABLE.all_methods))
_GROUP = Group((*_functions(_PLACES), *_own_methods(), *_derived()))
#: What `_GROUP` does not have yet: places in modules that nobody has imported, and classes other
#: than these.
_LATER = tuple(place for place in _PLACES if place[1] not in sys.modules)
_KNOWN = frozenset(derived for _, base, _ in _BASES for derived in with_derived(base))


def functions(policy: Policy) -> tuple[tuple[str, FunctionType | Group], ...]:
    """Return the functions that a policy must not reach, each with its kind."""
    if not reaches(policy):
        return ()
    return (("any kind", _GROUP), *_derived(_KNOWN), *_functions(_LATER))


@functools.lru_cache(KEPT_POLICIES)
def reaches(policy: Policy) -> bool:
    """Return whether a policy would make any of these functions compute low."""
    if not policy.active or preset(policy.preset).delegates:
        return False
    return any(policy.rules[op] in (Rule.LOW, Rule.NARROWEST) for op in _PARTS)


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


def _chunking(original: Function) -> Function:
    """Return the replacement of `jacrev`, whose result takes the gradients.

    Only gradients in chunks are put together by an operation that follows a rule.
    """

    @functools.wraps(original)
    def replacement(func: Function, *args: Any, **kwargs: Any) -> object:
        if kwargs.get("chunk_size") is None:
            return original(func, *args, **kwargs)
        return functools.partial(
            _differentiating(lambda func, *inputs: original(func, *args, **kwargs)(*inputs)), func
        )

    return replacement


def _linearizing(original: Function) -> Function:
    """Return the replacement of `linearize`: the function of tangents runs with no policy."""

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> object:
        output, tangents_of = original(*args, **kwargs)
        return output, _replacement(tangents_of)

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
        return _in_float32(original, args, kwargs)

    return replacement


def _in_float32(original: Function, args: Iterable[object], kwargs: Keywords) -> object:
    """Call a function with no policy in force, with low tensors cast to float32."""
    with without_policy():
        args = tuple(cast_floats(arg, torch.float32) for arg in args)
        kwargs = {name: cast_floats(arg, torch.float32) for name, arg in kwargs.items()}
        return original(*args, **kwargs)


@once_per_trace
def _draws_in_float32() -> bool:
    """Return whether the policy in force here must not reach distributions."""
    return thread.plan is not None and reaches(thread.plan.policy)


def decomposing(original: Function) -> Function:
    """Return the replacement of a function that decomposes a matrix by products of it.

    With low products it would not converge. They are low at O1 too, where a region replaces none of
    `exempt.toml`: `unamp_torch.patches` hooks the functions that compute.
    """

    @functools.wraps(original)
    def replacement(matrix: Tensor, *args: Any, **kwargs: Any) -> object:
        if not _decomposes_in_float32(matrix.device.type):
            return original(matrix, *args, **kwargs)
        return _in_float32(original, (matrix, *args), kwargs)

    return replacement


@once_per_trace
def _decomposes_in_float32(device: str) -> bool:
    """Return whether a policy is in force here that is not PyTorch's own lists."""
    plan = thread.plan
    if plan is None or plan.delegated:
        return False
    return plan.policy.active and not follows_native_lists(plan.policy, device)


#: The functions that make the replacements of some kinds, where `_replacement` makes all others.
_REPLACING: Mapping[str, Replacement] = {
    "chunking": _chunking,
    "decomposing": decomposing,
    "differentiating": _differentiating,
    "drawing": _drawing,
    "filling": _filling,
    "linearizing": _linearizing,
    "normalizing": _normalizing,
    "scaling": _scaling,
}


def replacing(kind: str) -> Replacement:
    """Return the function that makes the replacement of a function of a kind."""
    return _REPLACING.get(kind, _replacement)
