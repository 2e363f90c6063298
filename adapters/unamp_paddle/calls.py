"""One call of one of Paddle's operations while a region is open, from what stands in for the operation to its kernel and back.

What `entry` makes is called first. Nearly all calls have tensors and numbers for arguments: what a rule does about those is
known from the operation before any call, and `quick` gives the function that does it. All other calls go to
`unamp.adapter.performing.Performer`, to the same results.

On the CPU most operations have no kernel for a low dtype, and some that have one fail. There, low is emulated: inputs
rounded to low, computed in float32, the result rounded to low.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import paddle

from unamp.adapter.performing import EVERYTHING, Casts, Outcome, Performer, differing
from unamp.policy import Policy, Rule
from unamp_paddle import observing
from unamp_paddle.casting import NESTING, cast, chosen, each, floats, lowered, map_floats, owned, rounded, to_low
from unamp_paddle.facts import facts
from unamp_paddle.native import without_paddles_own
from unamp_paddle.operators import Operator
from unamp_paddle.rounding import as_it_is, follow, in_place
from unamp_paddle.state import (
    CPU_ONLY,
    DTYPES,
    FLOAT32,
    LOW,
    NAMES,
    Parameter,
    Plan,
    Tensor,
    Value,
    dtype_of,
    on_gpu,
    thread,
)  # fmt: skip

__all__ = ["entry", "perform", "quick"]

_FLOAT16, _BFLOAT16 = LOW
_TENSORS = frozenset({Tensor, Parameter})
_NUMBERS = frozenset({int, bool, float, type(None)})
_in_dynamic_mode = paddle.in_dynamic_mode

Quick = Callable[[Operator, Any, Any, dict[str, Any]], Any]


def entry(operator: Operator) -> Callable[..., Any]:
    """Return what is called in place of the original while a region is open."""
    call, name = operator.call, operator.name
    float32, tensor, parameter = FLOAT32, Tensor, Parameter

    def enter(*args: Any, **kwargs: Any) -> Any:
        plan = thread.plan
        if plan is None:
            return call(*args, **kwargs)
        # Most calls: nothing but float32 comes in, and the rule leaves that alone.
        if name not in plan.changes_float32:
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
        carry_out = plan.quick.get(operator)
        if carry_out is not None and thread.sink is None:
            result = carry_out(operator, plan.low, args, kwargs)
            if result is not NotImplemented:
                return result
        return plan.carry_out(operator, args, kwargs)

    enter.__name__ = enter.__qualname__ = name.rpartition(".")[2]
    return enter


# --- most calls --------------------------------------------------------------------------------------------------------------


def quick(operator: Operator, rule: Rule) -> Quick | None:
    """Return the function that carries out a rule for most calls of an operation.

    Returns:
        A function of the operation, the low dtype and the arguments, which gives NotImplemented for calls of other kinds. None
        where all calls are left to `perform`: on a GPU, and where the operation alone does not tell what is to be done.
    """
    if not (CPU_ONLY and operator.plain):
        return None
    if operator.view:
        return _move if not operator.composite and rule.leaves_agreeing else None
    return {
        Rule.LOW: _call_low, Rule.FP32: _call_float32, Rule.WIDEST: _call_widest, Rule.NARROWEST: _call_narrowest
    }.get(rule)  # fmt: skip


def _call_low(operator: Operator, low: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    seen = _dtypes(args, kwargs)
    return _emulate(operator, low, seen, args, kwargs) if seen else NotImplemented


def _call_widest(operator: Operator, low: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    seen = _dtypes(args, kwargs)
    if not seen:
        return NotImplemented
    if seen.count(seen[0]) == len(seen) and seen[0] is not FLOAT32:
        return _emulate(operator, seen[0], seen, args, kwargs)
    return _call_with(operator, cast, FLOAT32, args, kwargs)


def _call_narrowest(operator: Operator, low: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    seen = _dtypes(args, kwargs)
    if not seen:
        return NotImplemented
    dtype = seen[0] if seen.count(seen[0]) == len(seen) else differing(Rule.NARROWEST, FLOAT32, seen)
    if dtype is not FLOAT32:
        return _emulate(operator, dtype, seen, args, kwargs)
    return _call_with(operator, cast, FLOAT32, args, kwargs)


def _call_float32(operator: Operator, low: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    return _call_with(operator, cast, FLOAT32, args, kwargs) if _dtypes(args, kwargs) else NotImplemented


def _dtypes(args: Any, kwargs: dict[str, Any]) -> list[Any]:
    """Return the dtypes of the tensors; none where there are arguments other than eligible tensors and numbers."""
    seen = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        kind = type(value)
        if kind is Tensor or kind is Parameter:
            dtype = value.dtype
            if dtype is not FLOAT32 and dtype is not _FLOAT16 and dtype is not _BFLOAT16:
                return []
            seen.append(dtype)
        elif kind not in _NUMBERS:
            return []
    return [] if kwargs and kwargs.get("out") is not None else seen


def _emulate(operator: Operator, low: Any, seen: list[Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Call the original with its tensors rounded to low, and round its result."""
    return lowered(_call_with(operator, _rounding(operator, seen), low, args, kwargs), low, operator.rounded)


def _rounding(operator: Operator, seen: Sequence[Any]) -> Callable[[Any, Any], Any]:
    """Return how inputs, and with them their gradients, are rounded."""
    if operator.rounded is in_place:
        return owned
    return chosen if operator.rounded is as_it_is and len(seen) == 1 else rounded


def _call_with(operator: Operator, to: Callable[[Any, Any], Any], dtype: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Call the original with its tensors in another dtype."""
    args = each(to, dtype, args)
    if kwargs:
        kwargs = {name: to(value, dtype) if type(value) in _TENSORS else value for name, value in kwargs.items()}
    return _call(operator, None, args, kwargs) if operator.composite else operator.call(*args, **kwargs)


def _move(operator: Operator, low: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Call an operation that moves data only, on one tensor in any low dtype."""
    if kwargs or not args or type(args[0]) not in _TENSORS:
        return NotImplemented
    for value in args[1:]:
        kind = type(value)
        if kind not in _NUMBERS and (kind is not list or (value and type(value[0]) is not int)):
            return NotImplemented
    dtype = args[0].dtype
    if (dtype is not _FLOAT16 and dtype is not _BFLOAT16) or not _in_dynamic_mode() or not operator.runs_natively(dtype):
        return NotImplemented
    result = operator.call(*args)
    follow(args[0], result)
    return result


# --- all calls ---------------------------------------------------------------------------------------------------------------


class _Performer(Performer[Plan, Operator]):
    dtype_kind = type(paddle.float32)

    def is_left_alone(self, plan: Plan, operator: Operator, op: str | None, args: Any) -> bool:
        return plan.natively and not operator.composite and _in_dynamic_mode() and on_gpu(args)

    def is_native(self, operator: Operator, dtype: Any, args: Any) -> bool:
        if not CPU_ONLY and on_gpu(args):
            return True
        return operator.view and _in_dynamic_mode() and operator.runs_natively(dtype)

    def call(self, operator: Operator, inner: Plan | None, args: Any, kwargs: dict[str, Any]) -> Any:
        return _call(operator, inner, args, kwargs)

    def call_native(
        self, plan: Plan, operator: Operator, own: Mapping[int, Any], dtype: Any, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        inner = plan.inside(Rule.LOW) if own else plan.inside(Rule.UNTOUCHED) if operator.view else None
        result = _call(operator, inner, args, kwargs)
        if operator.view and args:
            follow(args[0], result)
        return result

    def within_layer(self, plan: Plan, parameters: Mapping[int, Any], to: Callable[[Any, Any], Any], dtype: Any) -> Plan:
        return _RoundedLayer(parameters, dtype) if to is rounded else plan.inside(Rule.FP32)

    def rounding(self, operator: Operator, seen: Sequence[Any]) -> Callable[[Any, Any], Any]:
        return _rounding(operator, seen)

    def lowered(self, operator: Operator, result: Any, dtype: Any) -> Any:
        internal = facts().intermediate.get(operator.name.rpartition(".")[2])
        if internal is None or _in_dynamic_mode():
            return lowered(result, dtype, operator.rounded)
        return tuple(each if n in internal else lowered(each, dtype, operator.rounded) for n, each in enumerate(result))

    def activation(self, kwargs: dict[str, Any]) -> str | None:
        return next((name for name in ("x", "input") if name in kwargs), None)

    def carry_out_rule(self, plan: Plan, operator: Operator, rule: Rule, args: Any, kwargs: dict[str, Any]) -> Outcome:
        if rule is Rule.UNTOUCHED and operator.needs_float32() and (CPU_ONLY or not on_gpu(args)):
            rule = Rule.FP32
        return super().carry_out_rule(plan, operator, rule, args, kwargs)

    def change(self, operator: Operator, seen: Sequence[Any], args: Any, kwargs: dict[str, Any]) -> Outcome:
        changed = args[0] if args else kwargs.get("x")
        if operator.out_of_place is None or not isinstance(changed, Tensor) or not floats(changed):
            return operator.call(*args, **kwargs), seen[0], False
        own = dtype_of(changed)
        if own is FLOAT32 or self.is_native(operator, own, args):
            if all(dtype is own for dtype in seen):
                return operator.call(*args, **kwargs), own, False
            args, kwargs = self.converted(cast, own, args, kwargs)
            return operator.call(changed, *args[1:], **kwargs), own, False
        args, kwargs = self.converted(cast, FLOAT32, args, kwargs)
        result = operator.out_of_place(*args, **kwargs)
        first = result[0] if isinstance(result, (tuple, list)) else result
        paddle._C_ops.assign_out_(cast(first, own), changed)
        return changed, own, True

    def report(
        self, op: str, operator: Operator, rule: Rule, run: Callable[[], Outcome], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        plan = thread.plan
        assert plan is not None
        return observing.report(
            op, operator, rule, run, args, kwargs, lambda low: self.compute_low(plan.low_alone(low), operator, args, kwargs)
        )

    def copied(self, tensor: Any, dtype: Any) -> Any:
        return tensor.clone() if tensor._is_initialized() else tensor


_performer = _Performer(thread, NESTING, Casts(cast, to_low, rounded, map_floats), NAMES, FLOAT32)
perform = _performer.perform


class _RoundedLayer:
    """The plan inside a layer that is emulated as one operation: float32, with the layer's parameters rounded.

    The layer itself is not changed: other threads may be using it.
    """

    policy = Policy(enabled=False)
    low = DTYPES[policy.dtype]
    changes_float32 = EVERYTHING
    quick: Mapping[Operator, Quick] = {}
    natively = False
    layer_rule: Rule | None = None

    def __init__(self, parameters: Mapping[int, Any], low: Any) -> None:
        self._parameters = parameters
        self._low = low

    def rule(self, op: str) -> Rule:
        return Rule.UNTOUCHED

    def inside(self, rule: Rule) -> Plan:
        return self

    def low_alone(self, dtype: str) -> Plan:
        return self

    def carry_out(self, operator: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
        """Call an operation inside the layer."""
        args, kwargs = _performer.converted(self._rounded, self._low, args, kwargs)
        return operator.call(*args, **kwargs)

    def _rounded(self, tensor: Any, low: Any) -> Any:
        return rounded(tensor, low) if id(tensor) in self._parameters else tensor


def _call(operator: Operator, inner: Plan | None, args: Any, kwargs: dict[str, Any]) -> Any:
    """Call the original; what a composite is made of follows another plan, or none."""
    if not operator.composite:
        return operator.call(*args, **kwargs)
    plan, thread.plan = thread.plan, inner
    try:
        if plan is not None and plan.natively:
            with without_paddles_own():
                return operator.call(*args, **kwargs)
        return operator.call(*args, **kwargs)
    finally:
        thread.plan = plan
