"""What stands between a caller and one of Paddle's operations while a region is open.

There are two kinds of operation. A *forward function* of `paddle._C_ops` (or a Tensor's `+`, `@`, ...) is one kernel. A
*whole* is a function or layer of Paddle's Python code that computes with several of them and is one operation of the
vocabulary, like `conv2d` with its bias: its own rule holds for everything inside.

On the CPU most operations have no kernel for a low dtype, and some that have one fail. There, low is emulated: inputs
rounded to low, computed in float32, the result rounded to low.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import paddle
from paddle.base import core
from paddle.base.framework import _dygraph_tracer

from unamp.adapter.observing import traced
from unamp.adapter.performing import performing
from unamp.adapter.performing import target as target_of
from unamp.policy import Rule
from unamp.vocabulary import vocabulary
from unamp_paddle import observing
from unamp_paddle.casting import cast, chosen, convert, floats, lowered, map_floats, owned, rounded, to_low
from unamp_paddle.facts import facts
from unamp_paddle.rounding import as_it_is, follow, in_place
from unamp_paddle.state import FLOAT32, NAMES, Parameter, Tensor, Value, dtype_of, thread

__all__ = ["Operator", "entry", "expects_gpu", "how_to_round", "perform", "quietly", "registered", "runs_natively"]

_DTYPE = type(paddle.float32)
_CPU_ONLY = not core.is_compiled_with_cuda()
_in_dynamic_mode = paddle.in_dynamic_mode


class Operator:
    """One operation as Paddle's code calls it, and what a rule needs to know about it.

    Attributes:
        op: the vocabulary's name; None for a forward function that the vocabulary does not have.
        name: Paddle's own name for what is called.
        call: the original.
        whole: whether it is Python code that computes with forward functions.
        layer: whether its parameters are not among its arguments: a layer's `forward`.
        activation_only: whether a rule casts the first tensor alone (norms, whose parameters and statistics stay float32).
        view: whether it returns a view of its input, or moves data only; it runs natively in every dtype.
        inplace: whether it changes its first argument.
        direct: whether it is Python code that reaches no forward function.
        which: finds the operation from the arguments, where one function does several; None is what no rule reaches.
        plain: whether nothing of the above holds, but perhaps `whole` or `view`.
        rounded: how the result is rounded where low is emulated, if not in the usual way; see `rounding.narrow`.
    """

    __slots__ = (
        "activation_only", "call", "direct", "inplace", "layer", "name", "op", "plain", "rounded", "twin", "view", "which",
        "whole",
    )  # fmt: skip

    def __init__(
        self,
        op: str | None,
        name: str,
        call: Callable[..., Any],
        *,
        whole: bool = False,
        layer: bool = False,
        inplace: bool = False,
        view: bool = False,
        direct: bool = False,
        which: Callable[[Any, Any], str | None] | None = None,
        twin: Callable[..., Any] | None = None,
    ) -> None:
        self.op = op
        self.name = name
        self.call = call
        self.whole = whole
        self.layer = layer
        self.inplace = inplace
        self.twin = twin
        self.view = view
        self.direct = direct
        self.which = which
        self.activation_only = op is not None and vocabulary()[op].group == "norm"
        self.plain = not (layer or inplace or direct or which is not None or self.activation_only)
        self.rounded = in_place if op in facts().own_results else as_it_is if op in facts().choosing else None

    def parameters(self, args: Any) -> dict[int, Any]:
        """The parameters that are not among the arguments, by their ids."""
        return _parameters(args[0]) if self.layer else {}


@cache
def _kernels() -> dict[str, list[str]]:
    return core._get_registered_phi_kernels("all")  # type: ignore[no-any-return]


@cache
def registered(name: str, dtype: str) -> bool:
    """Whether a forward function has a CPU kernel for a dtype, and so has its gradient."""

    def has(kernel: str) -> bool:
        return any(k.startswith("(CPU") and k.endswith(f", {dtype})") for k in _kernels().get(kernel, ()))

    return has(name) and (f"{name}_grad" not in _kernels() or has(f"{name}_grad"))


@cache
def runs_natively(operator: Operator, dtype: Any) -> bool:
    """Whether an operation that only moves data has what it takes to do so in a low dtype on the CPU."""
    return operator.whole or registered(operator.name.rpartition(".")[2].rstrip("_"), NAMES[dtype])


def entry(operator: Operator) -> Callable[..., Any]:
    """What is called in place of the original while a region is open."""
    call, name = operator.call, operator.name
    float32, tensor, parameter = FLOAT32, Tensor, Parameter

    def enter(*args: Any, **kwargs: Any) -> Any:
        plan = thread.plan
        if plan is None:
            return call(*args, **kwargs)
        # Most calls: nothing but float32 comes in, and the rule leaves that alone.
        busy = plan.busy
        if busy is not None and name not in busy:
            for value in (*args, *kwargs.values()) if kwargs else args:
                kind = type(value)
                if kind is tensor or kind is parameter:
                    if value.dtype is not float32:
                        break
                elif kind is list or kind is tuple:
                    if value and type(value[0]) is not int:
                        break
                elif kind is Value:
                    break
            else:
                return call(*args, **kwargs)
        short = plan.shortcuts.get(operator)
        if short is not None and thread.sink is None:
            result = short(operator, plan.low, args, kwargs)
            if result is not NotImplemented:
                return result
        return plan.carry_out(operator, args, kwargs)

    enter.__name__ = enter.__qualname__ = name.rpartition(".")[2]
    return enter


def perform(operator: Operator, plan: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Carry out the rule for one call."""
    if plan.natively and not operator.whole and _in_dynamic_mode() and _on_gpu(args):
        return operator.call(*args, **kwargs)
    op = operator.op if operator.which is None else operator.which(args, kwargs)
    rule = plan.rule(op)
    if thread.sink is not None and traced(op):
        return observing.report(op, operator, rule, lambda: _perform(operator, op, rule, plan, args, kwargs), args, kwargs)
    return _perform(operator, op, rule, plan, args, kwargs)[0]


def _carried_out(operator: Operator, rule: Rule, plan: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    own = operator.parameters(args) if operator.layer else {}
    seen = floats((*args, *kwargs.values(), *own.values()) if kwargs or own else args)
    if not seen or kwargs.get("out") is not None:
        return quietly(operator, None, args, kwargs), seen[0] if seen else None, False
    if operator.inplace:
        return _inplace(operator, seen, args, kwargs)
    if operator.activation_only and rule is not Rule.FP32:
        seen = seen[:1]
    mixed = seen.count(seen[0]) != len(seen)
    target = target_of(rule, plan.low, FLOAT32, seen, mixed)
    if target is not None and rule is not Rule.UNTOUCHED and _names_dtype(args, kwargs):
        target = None if FLOAT32 in seen else seen[0]
    if target is None:
        return quietly(operator, None, args, kwargs), seen[0], False
    if target is FLOAT32:
        args, kwargs = _converted(cast, FLOAT32, args, kwargs)
        return quietly(operator, plan.inside(Rule.FP32) if own else None, args, kwargs), FLOAT32, False
    if _native(operator, target, args):
        if mixed or seen[0] is not target:
            args, kwargs = _converted_to_low(operator, to_low, target, args, kwargs)
        inside = plan.inside(Rule.LOW) if own else plan.inside(Rule.UNTOUCHED) if operator.view else None
        result = quietly(operator, inside, args, kwargs)
        if operator.view and args:
            follow(args[0], result)
        return result, target, False
    args, kwargs = _converted_to_low(operator, how_to_round(operator, seen), target, args, kwargs)
    result = quietly(operator, Rounding(own, target) if own else None, args, kwargs)
    if operator.activation_only and isinstance(result, tuple):  # the statistics stay as they are
        return (lowered(result[0], target), *result[1:]), target, True
    return lowered(result, target, operator.rounded), target, True


_perform = performing(_carried_out, floats, lambda result: map_floats(result, FLOAT32))


def how_to_round(operator: Operator, seen: list[Any]) -> Callable[[Any, Any], Any]:
    """How inputs, and with them their gradients, are rounded."""
    if operator.rounded is in_place:
        return owned
    return chosen if operator.rounded is as_it_is and len(seen) == 1 else rounded


def quietly(operator: Operator, inside: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Call the original; what a whole is made of follows another plan, or none."""
    if not operator.whole:
        return operator.call(*args, **kwargs)
    plan, thread.plan = thread.plan, inside
    try:
        if plan is not None and plan.natively:
            with _without_paddles_own():
                return operator.call(*args, **kwargs)
        return operator.call(*args, **kwargs)
    finally:
        thread.plan = plan


@contextmanager
def _without_paddles_own() -> Iterator[None]:
    """Paddle's own AMP, in force beside the plan, does not reach into what is one operation."""
    tracer = _dygraph_tracer()
    level, tracer._amp_level = tracer._amp_level, core.AmpLevel.O0
    try:
        yield
    finally:
        tracer._amp_level = level


class Rounding:
    """The plan inside a layer that is emulated as one operation: float32, with the layer's parameters rounded.

    The layer itself is not changed: other threads may be using it.
    """

    busy = None  # every call is looked at
    shortcuts: Mapping[Operator, Callable[..., Any]] = {}
    natively = False

    def __init__(self, parameters: dict[int, Any], low: Any) -> None:
        self._parameters = parameters
        self._low = low

    def carry_out(self, operator: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
        """Call an operation inside the layer."""
        args, kwargs = _converted(self._rounded, self._low, args, kwargs)
        return operator.call(*args, **kwargs)

    def _rounded(self, tensor: Any, low: Any) -> Any:
        return rounded(tensor, low) if id(tensor) in self._parameters else tensor


def _parameters(layer: Any) -> dict[int, Any]:
    """A layer's parameters by their ids."""
    found = {}
    for home in layer.sublayers(include_self=True):
        for name, own in home._parameters.items():
            value = getattr(home, name)
            if value is None:
                continue
            found[id(value)] = value
            if isinstance(value, Value):  # what `to_static` traces; a layer may hold the parameter itself elsewhere, too
                found[id(own)] = own
    return found


def _names_dtype(args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether the caller named the result's dtype: an explicit cast, which no rule changes."""
    for value in args:
        if type(value) is _DTYPE and value in NAMES:
            return True
    return kwargs.get("dtype") is not None


def _native(operator: Operator, dtype: Any, args: Any) -> bool:
    """Whether Paddle computes an operation in a low dtype by itself where its inputs are."""
    if not _CPU_ONLY and _on_gpu(args):
        return True
    return operator.view and _in_dynamic_mode() and runs_natively(operator, dtype)


def _on_gpu(args: Any) -> bool:
    for value in args:
        if type(value) in (list, tuple) and value:
            value = value[0]
        if isinstance(value, Tensor):
            return bool(value.place.is_gpu_place())
        if isinstance(value, Value):
            return expects_gpu()
    return False


def expects_gpu() -> bool:
    """Whether new tensors are made on a GPU."""
    return bool(paddle.framework._current_expected_place().is_gpu_place())


def _converted(to: Callable[[Any, Any], Any], dtype: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return [convert(to, dtype, value) for value in args], {k: convert(to, dtype, value) for k, value in kwargs.items()}


def _converted_to_low(
    operator: Operator, to: Callable[[Any, Any], Any], dtype: Any, args: Any, kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    if not operator.activation_only:
        return _converted(to, dtype, args, kwargs)
    if args:
        first, rest = args[0], args[1:]
        args, kwargs = _converted(cast, FLOAT32, rest, kwargs)
        return [to(first, dtype), *args], kwargs
    _, kwargs = _converted(cast, FLOAT32, (), kwargs)
    return (), {k: to(value, dtype) if k in ("x", "input") else value for k, value in kwargs.items()}


def _inplace(operator: Operator, seen: list[Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """An in-place operation: no rule changes it, but on a low tensor it must work."""
    target = args[0] if args else kwargs.get("x")
    if operator.twin is None or not isinstance(target, Tensor) or not floats(target):
        return operator.call(*args, **kwargs), seen[0], False
    own = dtype_of(target)
    if own is FLOAT32 or _native(operator, own, args):
        if all(dtype is own for dtype in seen):
            return operator.call(*args, **kwargs), own, False
        args, kwargs = _converted(cast, own, args, kwargs)
        return operator.call(target, *args[1:], **kwargs), own, False
    args, kwargs = _converted(cast, FLOAT32, args, kwargs)
    result = operator.twin(*args, **kwargs)
    first = result[0] if isinstance(result, (tuple, list)) else result
    paddle._C_ops.assign_out_(cast(first, own), target)
    return target, own, True
