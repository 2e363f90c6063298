"""One call of a layer or a function of Keras on PyTorch that is one operation of the vocabulary.

To PyTorch such a layer is several operations: a `Dense` is a product, and a sum with a bias. The
layer's rule holds for both: its inputs and parameters are cast, and where the rule for a part is
another, the part follows the layer's. Keras' functions cast results to the dtype of their inputs:
so a function gets inputs as its rule says, and no rule reaches into it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any

import torch

from unamp import amp_warnings
from unamp._compiler_marks import once_per_trace
from unamp._function_types import Function, Keywords
from unamp.adapter.arguments import mapped, within
from unamp.adapter.keras_models import facts, library
from unamp.adapter.keras_policies import layer_path, states_float32
from unamp.adapter.observing import equation, traced
from unamp.adapter.open_traces import Observer
from unamp.adapter.performing import target
from unamp.adapter.plans import ban_message
from unamp.adapter.records import OpRecord
from unamp.errors import BannedOperation
from unamp.policy import Policy, Rule
from unamp.regions import region_of_values
from unamp.vocabulary import vocabulary
from unamp_torch.backward import without_policy
from unamp_torch.casting import ELIGIBLE, cast, cast_floats
from unamp_torch.observing import reporter, reporting
from unamp_torch.plans import follows_native_lists
from unamp_torch.python_functions import of_every_operation
from unamp_torch.state import DTYPES, dtype_name, thread

#: Layers whose parts follow their own rules, unless a user's list names the whole operation.
_TRANSPARENT = frozenset({"multi_head_attention"})


class _Inside(threading.local):
    """The layer that a thread is in, and that is one operation.

    Attributes:
        dtype: the dtype to which the layer's parameters are cast; None outside of such layers, and
            where parameters stay as they are.
        casts: the parameters that were cast already, by their ids, each with its cast.
        whole: whether the layer's parts follow no rules of their own.
        around: the values of the policy under which losses are being added up; None outside.
    """

    def __init__(self) -> None:
        # Set here, so that each thread's own dictionary has them from the start: a compiler looks
        # there, and an attribute that came later would be another state.
        self.dtype: torch.dtype | None = None
        self.whole = False
        self.casts: dict[int, tuple[torch.Tensor, torch.Tensor]] | None = None
        self.around: tuple[object, ...] | None = None


inside = _Inside()


def as_one_operation(classes: Mapping[type, tuple[str, str]], original: Function) -> Function:
    """Return the replacement of a layer's `call`."""

    @functools.wraps(original)
    def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> object:
        op, path = next((classes[of] for of in type(self).__mro__ if of in classes), ("", ""))
        rule = _rule(op) if op and inside.dtype is None and not inside.whole else None
        if rule is None:
            return original(self, *args, **kwargs)
        if not torch.compiler.is_compiling() and states_float32(self):
            _warn(op, self)
        return _follow(
            op, rule, layer_path(self, path), self, functools.partial(original, self), args, kwargs
        )

    return call


def _warn(op: str, layer: Any) -> None:
    """Warn of a layer that states float32, where its rule makes it low."""
    plan = thread.plan
    if plan is not None and plan.policy.active and plan.policy.rules[op] is Rule.LOW:
        amp_warnings.follows_the_region(
            "torch", type(layer).__name__, layer.name, plan.policy.dtype
        )


def function_as_one_operation(op: str, path: str, original: Function) -> Function:
    """Return the replacement of a function."""

    def call(*args: Any, **kwargs: Any) -> object:
        rule = None if inside.whole else _rule(op)
        if rule is None:
            return original(*args, **kwargs)
        return _follow(op, rule, path, None, original, args, kwargs)

    return call


#: In the place of a rule's name where a trace wants a report. (A graph can hold names, but no
#: rules.)
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
    if follows_native_lists(policy, device) or (
        op in _TRANSPARENT and op not in policy.allow and op not in policy.deny
    ):
        return None
    rule = policy.rules[op]
    return None if rule is Rule.UNTOUCHED else rule.name


def _follow(
    op: str,
    rule: str,
    path: str,
    layer: torch.nn.Module | None,
    call: Function,
    args: Sequence[object],
    kwargs: Keywords,
) -> object:
    if rule == _REPORTED:
        return _reported(op, path, layer, call, args, kwargs)
    return _perform(op, rule, layer, call, args, kwargs)


def _perform(
    op: str,
    rule: str,
    layer: torch.nn.Module | None,
    call: Function,
    args: Sequence[object],
    kwargs: Keywords,
) -> object:
    """Call a layer, or a function where `layer` is None, as a rule says."""
    found = _dtypes(args, kwargs)
    if not found and op != "embedding":  # the input of an embedding is whole numbers
        return call(*args, **kwargs)
    if rule == Rule.BANNED.name:
        raise BannedOperation(_ban(op))
    if _is_norm(op):
        return _perform_norm(_target(rule, found[:1]), call, args, kwargs)
    dtype = _target(rule, [*found, *(DTYPES[each._dtype] for each in _parameters(layer))])
    if dtype is None:
        return (
            _call_inside(inside.dtype, without_policy(), call, args, kwargs)
            if layer is None
            else call(*args, **kwargs)
        )
    given = cast_floats(args, dtype), cast_floats(kwargs, dtype)
    if layer is None:
        result = _call_inside(dtype, without_policy(), call, *given)
        stated = kwargs.get("dtype") is not None or (
            dtype is torch.float32 and rule != Rule.FP32.name
        )
    else:
        stated = _has_activation(op)  # the result is the activation's, under its own rule
        under = _for_parts(op, dtype_name(dtype))
        region = nullcontext() if under is None else region_of_values(under, "torch")
        result = _call_inside(dtype, region, call, *given, whole=not stated)
    return result if stated else cast_floats(result, dtype)


def _perform_norm(
    dtype: torch.dtype | None, call: Function, args: Sequence[object], kwargs: Keywords
) -> object:
    """Cast the activation alone: a low one is rounded, normalised in float32, and rounded again."""
    if dtype is None:
        return _call_inside(None, without_policy(), call, args, kwargs)
    first = _tensors((args, kwargs))[0]

    def widened(value: torch.Tensor) -> torch.Tensor:
        return (
            cast(cast(value, dtype), torch.float32)
            if value is first
            else cast(value, torch.float32)
        )

    given = mapped(args, torch.is_tensor, widened), mapped(kwargs, torch.is_tensor, widened)
    result = _call_inside(None, without_policy(), call, *given)
    if isinstance(result, (tuple, list)):  # the statistics stay as they are
        return type(result)([cast(result[0], dtype), *result[1:]])
    return cast_floats(result, dtype)


def _call_inside(
    dtype: torch.dtype | None,
    under: AbstractContextManager[object],
    call: Function,
    args: Sequence[object],
    kwargs: Keywords,
    *,
    whole: bool = True,
) -> object:
    """Call a function under a policy, inside an operation.

    Args:
        dtype: the dtype to which variables are cast that the function reads.
        whole: whether no layer and no function inside follows a rule.
    """
    before = inside.dtype, inside.casts, inside.whole
    casts = inside.casts if dtype is inside.dtype else {}
    inside.dtype, inside.casts, inside.whole = dtype, casts, whole
    try:
        with under:
            return call(*args, **kwargs)
    finally:
        inside.dtype, inside.casts, inside.whole = before


def _parameters(layer: Any) -> list[Any]:
    """Return a layer's parameters, and those of the layers inside."""
    if layer is None:
        return []
    mine = [value for value in layer._trainable_variables if value._dtype in DTYPES]
    return mine + [value for inner in layer._layers for value in _parameters(inner)]


@once_per_trace
def _is_norm(op: str) -> bool:
    return vocabulary()[op].group == "norm"


def _target(rule: str, seen: list[torch.dtype]) -> torch.dtype | None:
    if not seen:
        return None
    wanted: torch.dtype | None = target(
        Rule[rule], DTYPES[_low()], torch.float32, seen, len({*seen}) > 1
    )
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
    return ban_message(thread.plan.policy, op)


@once_per_trace
def _for_parts(op: str, dtype: str) -> tuple[object, ...] | None:
    """Return the policy arguments for a layer's parts; None where they follow the layer's rule."""
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


def _dtypes(args: Sequence[object], kwargs: Keywords) -> list[torch.dtype]:
    """Return the dtypes of eligible tensors in arguments, and of variables as they will be read."""
    read = [
        DTYPES[each._dtype] if inside.dtype is None else inside.dtype
        for each in _variables((args, kwargs))
    ]
    return [*(each.dtype for each in _tensors((args, kwargs))), *read]


def _variables(value: object) -> list[Any]:
    return [each for each in within(value, library().Variable) if each._dtype in DTYPES]


def _tensors(value: object) -> list[torch.Tensor]:
    return [each for each in within(value, torch.Tensor) if each.dtype in ELIGIBLE]


# --- reporting ------------------------------------------------------------------------------------


def _reported(
    op: str,
    path: str,
    layer: torch.nn.Module | None,
    call: Function,
    args: Sequence[object],
    kwargs: Keywords,
) -> object:
    """Call a layer or a function, and report it as the one operation that it is."""
    plan, rule = thread.plan, Rule.UNTOUCHED.name
    if plan is not None and plan.policy.active:
        found = None if plan.delegated else _of_policy(plan.policy, op, plan.devices[0])
        if found is None:
            return call(*args, **kwargs)
        rule = found
    given = [*_tensors((args, kwargs)), *(each._value for each in _variables((args, kwargs)))]
    if not traced(op) or (not given and op != "embedding"):
        return call(*args, **kwargs)
    seen = given[:1] if _is_norm(op) else [*given, *(each._value for each in _parameters(layer))]
    followed = rule != Rule.UNTOUCHED.name
    with as_one() as observer:
        result = (
            _perform(op, rule, layer, call, args, kwargs) if followed else call(*args, **kwargs)
        )
    dtypes = tuple(dtype_name(each.dtype) for each in seen)
    wanted = _target(rule, [each.dtype for each in seen]) if followed else None
    compute = (
        dtype_name(wanted)
        if wanted is not None
        else "float32"
        if "float32" in dtypes
        else dtypes[0]
    )
    emulated = _is_norm(op) and compute != "float32" and followed
    written = equation(op, [getattr(layer, "equation", None), *args], kwargs)
    shapes = reporter.shapes(seen)
    record = OpRecord(
        op, path, Rule[rule], dtypes, compute, None, emulated, input_shapes=shapes, equation=written
    )
    with as_one(), without_policy():  # looking at a result is no operation of the network
        reporter.report(observer, record, reporter.sizes(seen), result, first_only=_is_norm(op))
    return result


@contextmanager
def as_one() -> Iterator[Observer]:
    """Report no parts of an operation while open; yield the observer, for the whole."""
    observer = thread.sink
    assert observer is not None
    with reporting(None):
        yield observer
