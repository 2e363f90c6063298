"""One call of a layer of Keras on PyTorch that is one operation of the vocabulary.

To PyTorch such a layer is several operations: a `Dense` is a product, and a sum with a bias. Its rule holds for both: the
layer's inputs and parameters are cast, and where a rule for a part says otherwise, its parts follow the layer's.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch

from unamp._compiler_marks import once_per_trace
from unamp.adapter.keras_models import facts
from unamp.adapter.observer import Observer
from unamp.adapter.observing import Reporter, traced, unreported
from unamp.adapter.performing import target
from unamp.adapter.records import OpRecord
from unamp.errors import BannedOperation
from unamp.policy import Policy, Rule
from unamp.regions import policy_region
from unamp_torch.casting import ELIGIBLE, cast
from unamp_torch.functions import of_every_operation
from unamp_torch.plans import to_the_letter
from unamp_torch.state import DTYPES, dtype_name, include_kernels, thread

__all__ = ["Function", "as_one_operation", "inside"]

Function = Callable[..., Any]

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


inside = _Inside()


def as_one_operation(classes: Mapping[type, tuple[str, str]], original: Function) -> Function:
    """Return what stands in for a layer's `call`."""

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        op, path = next((classes[of] for of in type(self).__mro__ if of in classes), ("", ""))
        rule = _rule(op) if op and inside.dtype is None else None
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
    before = inside.dtype, inside.casts
    inside.dtype, inside.casts = dtype, {}
    try:
        under = _for_parts(op, dtype_name(dtype))
        if under is None:
            result = original(layer, *args, **kwargs)
        else:
            with policy_region(Policy(*under), framework="torch"):
                result = original(layer, *args, **kwargs)
    finally:
        inside.dtype, inside.casts = before
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
