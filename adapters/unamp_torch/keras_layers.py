"""Layers of Keras on PyTorch that are one operation of the vocabulary, and what no rule reaches there.

To PyTorch a Keras layer is several operations: a `Dense` is a product, and a sum with a bias. Its rule holds for both: while a
region is open the layer's inputs and parameters are cast, and where a rule for a part says otherwise, its parts follow the
layer's.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache, lru_cache
from typing import Any

import torch

from unamp._compiler_marks import once_per_trace
from unamp.adapter.keras_models import facts, keras_on, library
from unamp.adapter.observer import Observer
from unamp.adapter.observing import Reporter, traced, unreported
from unamp.adapter.patching import Patch, find
from unamp.adapter.performing import target
from unamp.adapter.records import OpRecord
from unamp.adapter.replacing import AttributePatch, PatchGroup
from unamp.adapter.spellings import at_path
from unamp.errors import BannedOperation
from unamp.policy import Policy, Rule
from unamp.regions import policy_region
from unamp.vocabulary import vocabulary
from unamp_torch import backward
from unamp_torch.casting import ELIGIBLE, cast, cast_weight
from unamp_torch.functions import of_every_operation
from unamp_torch.plans import to_the_letter
from unamp_torch.state import DTYPES, dtype_name, include_kernels, thread

__all__ = ["acquire", "in_use", "named", "release"]

Function = Callable[..., Any]

#: Groups of operations whose layers only call PyTorch's own operator, which follows its rule by itself.
_LEFT = frozenset({"norm", "shape", "creation", "random", "cast"})

#: Layers whose parts follow their own rules, unless a user's list names the whole operation.
_TRANSPARENT = frozenset({"multi_head_attention"})


class _Inside(threading.local):
    """The layer that a thread is in, and that is one operation.

    Attributes:
        dtype: what its parameters are cast to; None outside of such layers, and where they are left alone.
        casts: those that were cast already, by their ids, each with its cast.
    """

    dtype: torch.dtype | None = None
    casts: dict[int, tuple[torch.Tensor, torch.Tensor]] | None = None


_inside = _Inside()


def in_use() -> bool:
    """Return whether Keras is imported and computes with PyTorch."""
    return keras_on("torch")


def named(path: str) -> Any:
    """Return the layer class of a spelling of Keras's; None where this version has none of that name."""
    return at_path(library(), path.removeprefix("keras."))


def acquire() -> None:
    """Apply what a region patches in Keras, where that is not done."""
    global _applied
    if not _applied:
        _patches().apply()
        _applied = True


def release() -> None:
    """Undo it, where it is done."""
    global _applied
    if _applied:
        _patches().undo()
        _applied = False


_applied = False


@cache
def _patches() -> PatchGroup:
    variable, policy = find("keras.src.backend.common.variables", "Variable"), find("keras.src.dtype_policies", "DTypePolicy")
    made: list[Patch] = [
        AttributePatch(variable, "_maybe_autocast", _parameter),
        AttributePatch(policy, "convert_input", _input),
        AttributePatch(find("keras.src.layers.layer", "Layer"), "add_weight", _suspending),
        AttributePatch(find("keras.src.backend.torch.core", "Variable"), "_initialize", _suspending),
    ]
    for module, paths in facts().suspended.items():
        for path in paths:
            of, _, name = path.rpartition(".")
            made.append(AttributePatch(find(module, of), name, _suspending))
    return PatchGroup([*made, *_layers()])


def _layers() -> Iterator[Patch]:
    """Yield the patches of the methods `call` of layers; several classes may share one."""
    classes: dict[type, tuple[str, str]] = {}
    for op in vocabulary().values():
        for path in op.spellings.get("tensorflow", ()):
            if path.startswith("keras.layers.") and op.group not in _LEFT and isinstance(found := named(path), type):
                classes.setdefault(found, (op.name, path))
    homes: dict[type, None] = {}
    for layer in classes:
        home = next((each for each in layer.__mro__ if "call" in vars(each)), None)
        if home is not None and home.__module__ != "keras.src.layers.layer":
            homes.setdefault(home)
    for home in homes:
        yield AttributePatch(home, "call", functools.partial(_layer, classes))


# --- one call of a layer -----------------------------------------------------------------------------------------------------


def _layer(classes: Mapping[type, tuple[str, str]], original: Function) -> Function:
    """Return what stands in for a layer's `call`."""

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        op, path = next((classes[of] for of in type(self).__mro__ if of in classes), ("", ""))
        rule = _rule(op) if op and _inside.dtype is None else None
        if rule is None:
            return original(self, *args, **kwargs)
        if rule == _REPORTED:
            return _reported(op, path, self, original, args, kwargs)
        return _perform(op, rule, self, original, args, kwargs)

    return call


#: What is to be done about a layer, as a graph can hold it: the name of a rule, or this where a trace wants to know.
_REPORTED = "reported"


@once_per_trace
def _rule(op: str) -> str | None:
    """Return the name of the rule for a layer; None where its parts are left to follow theirs."""
    plan = thread.plan
    if thread.sink is not None and not torch.compiler.is_compiling():
        return _REPORTED
    if plan is None or plan.delegated or not plan.policy.active:
        return None
    return _of_policy(plan.policy, op, plan.devices[0])


@lru_cache(maxsize=1024)
def _of_policy(policy: Policy, op: str, device: str) -> str | None:
    if to_the_letter(policy, device) or (op in _TRANSPARENT and op not in policy.allow and op not in policy.deny):
        return None
    rule = policy.rules[op]
    return None if rule is Rule.UNTOUCHED else rule.name


def _perform(op: str, rule: str, layer: Any, original: Function, args: Any, kwargs: Any) -> Any:
    found = [each.dtype for each in _tensors((args, kwargs))]
    own = [DTYPES[value._dtype] for value in layer._trainable_variables if value._dtype in DTYPES]
    if not found and op != "embedding":  # whose input is whole numbers
        return original(layer, *args, **kwargs)
    if rule == Rule.BANNED.name:
        raise BannedOperation(_ban(op))
    dtype = _target(rule, [*found, *own])
    if dtype is None:
        return original(layer, *args, **kwargs)
    args, kwargs = _converted(args, dtype), _converted(kwargs, dtype)
    before = _inside.dtype, _inside.casts
    _inside.dtype, _inside.casts = dtype, {}
    try:
        under = _for_parts(op, dtype_name(dtype))
        if under is None:
            result = original(layer, *args, **kwargs)
        else:
            with policy_region(Policy(*under), framework="torch"):
                result = original(layer, *args, **kwargs)
    finally:
        _inside.dtype, _inside.casts = before
    return result if _has_activation(op) else _converted(result, dtype)  # there an activation's result comes last


def _target(rule: str, seen: list[torch.dtype]) -> torch.dtype | None:
    if not seen:
        return None
    wanted: torch.dtype | None = target(Rule[rule], DTYPES[_low()], torch.float32, seen, len({*seen}) > 1)
    return wanted


@once_per_trace
def _has_activation(op: str) -> bool:
    return op in facts().parts


@once_per_trace
def _low() -> str:
    assert thread.plan is not None
    return thread.plan.policy.dtype


@once_per_trace
def _ban(op: str) -> str:
    assert thread.plan is not None
    return f"{op} is banned by the policy in force. {thread.plan.policy.reason(op).advice}".rstrip()


@once_per_trace
def _for_parts(op: str, dtype: str) -> tuple[Any, ...] | None:
    """Return what the policy for a layer's parts is made of; None where they follow the layer's rule by themselves."""
    assert thread.plan is not None
    made = _parts_policy(thread.plan.policy, op, dtype)
    return None if made is None else made._values


@lru_cache(maxsize=1024)
def _parts_policy(policy: Policy, op: str, dtype: str) -> Policy | None:
    low = dtype != "float32"
    parts = facts().parts.get(op)
    if parts is None:
        return of_every_operation(Rule.LOW if low else Rule.FP32, policy.dtype)
    against = (Rule.FP32, Rule.BANNED) if low else (Rule.LOW, Rule.BANNED)
    if not any(policy.rules[part] in against for part in parts):
        return None
    allow = {*policy.allow, *parts} if low else {*policy.allow} - parts
    deny = {*policy.deny} - parts if low else {*policy.deny, *parts}
    return policy.replace(allow=tuple(sorted(allow)), deny=tuple(sorted(deny)))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.dtype in ELIGIBLE:
            yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each)


def _converted(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return cast(value, dtype)
    if isinstance(value, (list, tuple)):
        made = [_converted(each, dtype) for each in value]
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    if type(value) is dict:
        return {key: _converted(each, dtype) for key, each in value.items()}
    return value


# --- parameters and inputs ---------------------------------------------------------------------------------------------------


def _parameter(original: Function) -> Function:
    """Return what stands in for the cast of a variable as it is read: in a layer that is one operation, to its dtype."""

    def _maybe_autocast(self: Any, value: Any) -> Any:
        dtype = _inside.dtype
        if dtype is None or not isinstance(value, torch.Tensor):
            return original(self, value)
        casts = _inside.casts
        if casts is None or torch.compiler.is_compiling():
            return cast(value, dtype)
        if (kept := casts.get(id(value))) is None:  # a loop over time reads it at every step
            kept = casts[id(value)] = value, cast_weight(value, dtype)
        return kept[1]

    return _maybe_autocast


@once_per_trace
def _in_region() -> bool:
    return thread.plan is not None and not thread.plan.delegated and thread.plan.policy.active


def _input(original: Function) -> Function:
    """Return what stands in for the cast of a layer's inputs to its compute dtype.

    A low input, and a float32 one where the layer is low, stays as it is: the policy decides what it is cast to.
    """

    def convert_input(self: Any, x: Any, autocast: Any, dtype: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.dtype in ELIGIBLE and _in_region():
            own = str(dtype)
            if own == "float32" or (own in DTYPES and self.variable_dtype == own):  # not where precision is mixed
                return x
        return original(self, x, autocast, dtype)

    return convert_input


# --- what no rule reaches ----------------------------------------------------------------------------------------------------


def _suspending(original: Function) -> Function:
    """Wrap a function so that it runs with no policy in force, also as a part of a graph."""

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not _in_region():
            return original(*args, **kwargs)
        before = _inside.dtype
        _inside.dtype = None
        try:
            with _without_policy():
                return original(*args, **kwargs)
        finally:
            _inside.dtype = before

    return run


def _without_policy() -> AbstractContextManager[Any]:
    return policy_region(Policy(enabled=False), framework="torch") if torch.compiler.is_compiling() else backward.suspended()


# --- reporting ---------------------------------------------------------------------------------------------------------------


def _reported(op: str, path: str, layer: Any, original: Function, args: Any, kwargs: Any) -> Any:
    """Call a layer, and report it as the one operation that it is."""
    plan = thread.plan
    rule = Rule.UNTOUCHED.name
    if plan is not None and plan.policy.active:
        found = None if plan.delegated else _of_policy(plan.policy, op, plan.devices[0])
        if found is None:
            return original(layer, *args, **kwargs)
        rule = found
    given = list(_tensors((args, kwargs)))
    if not traced(op) or (not given and op != "embedding"):
        return original(layer, *args, **kwargs)
    seen = [*given, *(each._value for each in layer._trainable_variables if each._dtype in DTYPES)]
    with _as_one() as observer:
        if rule == Rule.UNTOUCHED.name:
            result = original(layer, *args, **kwargs)
        else:
            result = _perform(op, rule, layer, original, args, kwargs)
    dtypes = tuple(dtype_name(each.dtype) for each in seen)
    wanted = _target(rule, [each.dtype for each in seen]) if rule != Rule.UNTOUCHED.name else None
    compute = dtype_name(wanted) if wanted is not None else "float32" if "float32" in dtypes else dtypes[0]
    record = OpRecord(op, path, Rule[rule], dtypes, compute, None)
    _reporter.report(observer, record, _reporter.sizes(seen), result, first_only=False)
    return result


@contextmanager
def _as_one() -> Iterator[Observer]:
    """Have nothing reported that an operation is made of; give the observer, to report the whole."""
    try:
        with unreported(thread) as observer:
            include_kernels(thread.plan)
            yield observer
    finally:
        include_kernels(thread.plan)


def _numbers(tensor: torch.Tensor) -> Any:
    with torch.no_grad():
        return tensor.detach().double().reshape(-1)


_reporter = Reporter(_tensors, lambda tensor: dtype_name(tensor.dtype), _numbers)
