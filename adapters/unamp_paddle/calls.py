"""One call of a Paddle operation in a region, from its replacement to its kernel and back.

The function that `entry` returns is called first. It runs the original at once where no rule
changes the call; all other calls go to `unamp.adapter.performing.Performer`.

On the CPU most operations have no kernel for a low dtype, and some kernels that exist fail. So low
is emulated there: inputs rounded to low, computed in float32, the result rounded to low.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import paddle

from unamp._function_types import Function, Keywords
from unamp.adapter.float8 import Arithmetic
from unamp.adapter.performing import AS_IT_IS, Casts, LayerPlan, Outcome, Parts, Performer
from unamp.errors import NotExpressible
from unamp.policy import Rule
from unamp_paddle import observing
from unamp_paddle.casting import NESTING, cast, floats, map_floats, rounded
from unamp_paddle.facts import facts
from unamp_paddle.native import without_paddles_own
from unamp_paddle.operators import Operator, indexes
from unamp_paddle.state import (
    CPU_ONLY,
    DTYPES,
    FLOAT32,
    NAMES,
    Parameter,
    Plan,
    Tensor,
    TensorT,
    Value,
    dtype_of,
    on_gpu,
    thread,
)

_in_dynamic_mode = paddle.in_dynamic_mode

_DTYPE = type(paddle.float32)
_BY_NAME = {name: value for name, value in vars(paddle).items() if isinstance(value, _DTYPE)}


def entry(operator: Operator) -> Function:
    """Return the function that replaces an operation's original while a region is open."""
    call, name = operator.call, operator.name
    float32, tensor, parameter = FLOAT32, Tensor, Parameter

    def enter(*args: Any, **kwargs: Any) -> Any:
        plan = thread.plan
        if plan is None:
            return call(*args, **kwargs)
        # Most calls have only float32 inputs, and a rule that leaves those alone. The loop looks
        # for anything else; it runs at every call, so types are compared with `is`.
        if name not in plan.changes_float32:
            for value in (*args, *kwargs.values()) if kwargs else args:
                kind = type(value)
                if kind is tensor or kind is parameter:
                    if value.dtype is not float32:
                        break
                elif kind is list or kind is tuple:
                    # Integers are a shape or axes; any other list may hold low tensors.
                    if value and type(value[0]) is not int:
                        break
                elif kind is Value:  # its dtype is a new object each time: `is` says nothing
                    break
            else:
                return call(*args, **kwargs)
        return plan.carry_out(operator, args, kwargs)

    enter.__name__ = enter.__qualname__ = name.rpartition(".")[2]
    return enter


class _Performer(Performer[Plan, Operator]):
    dtype_kind = _DTYPE
    arithmetic = Arithmetic(
        paddle.where, lambda tensor, axes: paddle.max(tensor, axes, keepdim=True)
    )
    reporting = staticmethod(observing.report)

    def is_left_alone(
        self,
        plan: Plan,
        operator: Operator,
        op: str | None,
        args: Sequence[object],
        kwargs: Keywords,
    ) -> bool:
        if operator.sparse and op is not None:
            _check_sparse(plan, op, args)
            return True
        if op is None and operator.op in plan.policy.allow:
            raise NotExpressible(
                f"{operator.op} is in the list allow=, and no rule reaches an embedding with "
                f"sparse gradients: Paddle has no cast for those. Take {operator.op} out of the "
                "list, or make the embedding with sparse=False"
            )
        # Paddle's own AMP, in force beside the plan, casts for forward functions on a GPU.
        return plan.natively and not operator.composite and _in_dynamic_mode() and on_gpu(args)

    def is_native(self, operator: Operator, dtype: paddle.dtype, args: Sequence[object]) -> bool:
        if not CPU_ONLY and on_gpu(args):
            return True
        if not _in_dynamic_mode():
            return False
        # Reading a slice gives a view: an emulated one would not share the tensor's memory.
        view = operator.view or (operator.direct and not indexes(args))
        return view and operator.runs_natively(dtype)

    def call(
        self,
        plan: Plan,
        operator: Operator,
        args: Sequence[object],
        kwargs: Keywords,
        parts: Parts = AS_IT_IS,
    ) -> object:
        if not operator.composite:
            return operator.call(*args, **kwargs)
        before, thread.plan = thread.plan, _plan_for_parts(plan, operator, parts)
        try:
            # Paddle's own AMP would cast inside the composite, by the rules of its parts.
            if before is not None and before.natively:
                with without_paddles_own():
                    return operator.call(*args, **kwargs)
            return operator.call(*args, **kwargs)
        finally:
            thread.plan = before

    def named_dtype(self, operator: Operator, args: Sequence[object], kwargs: Keywords) -> object:
        # Not super(): see `carry_out_rule`.
        return (
            None
            if operator.op in facts().names_indices
            else Performer.named_dtype(self, operator, args, kwargs)
        )

    def dtype_meant(self, value: object) -> paddle.dtype | None:
        if isinstance(value, str):
            return _BY_NAME.get(value)
        if isinstance(value, np.dtype) or (
            isinstance(value, type) and issubclass(value, np.generic)
        ):
            return _BY_NAME.get(np.dtype(value).name)
        return value if isinstance(value, _DTYPE) else None

    def lowered(self, operator: Operator, result: Any, dtype: paddle.dtype) -> object:
        internal = facts().intermediate.get(operator.name.rpartition(".")[2])
        if internal is None or _in_dynamic_mode():
            return map_floats(result, dtype)
        return tuple(
            each if n in internal else map_floats(each, dtype) for n, each in enumerate(result)
        )

    def activation(self, kwargs: Keywords) -> str | None:
        return next((name for name in ("x", "input") if name in kwargs), None)

    def carry_out_rule(
        self, plan: Plan, operator: Operator, rule: Rule, args: Sequence[object], kwargs: Keywords
    ) -> Outcome:
        if rule is Rule.UNTOUCHED and operator.needs_float32() and (CPU_ONLY or not on_gpu(args)):
            rule = Rule.FP32
        if rule is Rule.UNTOUCHED and operator.op in facts().alike:
            rule = Rule.WIDEST
        # Not super(): SOT simulates this code where a user calls Paddle's C functions, and loses
        # `self` behind super().
        if operator.op == "batch_norm" and not operator.in_place:
            carry_out = partial(Performer.carry_out_rule, self, plan, operator, rule)
            return self.updating(_statistics(args, kwargs), carry_out, args, kwargs)
        if operator.op == _KEEPS_STATE and rule is Rule.LOW and args:
            # As in a norm, only the activation becomes low: the state between calls is float32.
            args = [rounded(args[0], plan.low), *args[1:]]
            (activation, *state), _, _ = Performer.carry_out_rule(
                self, plan, operator, Rule.FP32, args, kwargs
            )
            return (map_floats(activation, plan.low), *state), plan.low, True
        return Performer.carry_out_rule(self, plan, operator, rule, args, kwargs)

    def write(self, tensor: Tensor | Value, values: Tensor | Value) -> None:
        paddle._C_ops.assign_out_(cast(values.detach(), dtype_of(tensor)), tensor)

    def call_in_place(
        self,
        plan: Plan,
        operator: Operator,
        seen: Sequence[paddle.dtype],
        args: Sequence[object],
        kwargs: Keywords,
    ) -> Outcome:
        # The first argument of `where_` is the condition, the second the tensor that it changes.
        place = 1 if operator.op == "where" else 0
        changed = args[place] if len(args) > place else kwargs.get("x")
        if operator.out_of_place is None or not isinstance(changed, Tensor) or not floats(changed):
            return operator.call(*args, **kwargs), seen[0], False
        own = dtype_of(changed)
        if own is FLOAT32 or self.is_native(operator, own, args):
            if all(dtype is own for dtype in seen):
                return operator.call(*args, **kwargs), own, False
            args, kwargs = self.converted(cast, own, args, kwargs)
            return operator.call(*args[:place], changed, *args[place + 1 :], **kwargs), own, False
        args, kwargs = self.converted(cast, FLOAT32, args, kwargs)
        result = operator.out_of_place(*args, **kwargs)
        first = result[0] if isinstance(result, (tuple, list)) else result
        paddle._C_ops.assign_out_(cast(first, own), changed)
        return changed, own, True

    def copied(self, tensor: Tensor, dtype: object) -> Tensor:
        return tensor.clone() if tensor._is_initialized() else tensor


#: The operation whose results are an activation, and then a scale and a moving average: its state.
_KEEPS_STATE = "fake_quantize_dequantize_moving_average_abs_max"
#: The statistics that a batch norm updates: the place of each in a call, and its names in Paddle.
_STATISTICS = ((1, ("running_mean", "mean")), (2, ("running_var", "variance")))


def _statistics(args: Sequence[object], kwargs: Keywords) -> list[object]:
    return [
        args[place]
        if place < len(args)
        else next((kwargs[name] for name in names if name in kwargs), None)
        for place, names in _STATISTICS
    ]


def _check_sparse(plan: Plan, op: str, args: Sequence[object]) -> None:
    """Check that sparse tensors have the dtype that a user's list asks for.

    Levels and presets leave sparse tensors alone.

    Raises:
        NotExpressible: where the list asks for a cast of a sparse tensor.
    """
    listed = "allow" if op in plan.policy.allow else "deny" if op in plan.policy.deny else None
    if listed is None:
        return
    wanted = plan.low if listed == "allow" else FLOAT32
    for value in args:
        if isinstance(value, Tensor) and (value.is_sparse_coo() or value.is_sparse_csr()):
            dtype = dtype_of(value)
            if dtype in NAMES and dtype is not wanted:
                raise NotExpressible(
                    f"{op} is in the list {listed}=, which means {NAMES[wanted]}, and it is called "
                    f"with a sparse tensor in {NAMES[dtype]}, which no region casts: Paddle's CPU "
                    f"has no low kernels for those. Take {op} out of the list, or compute with "
                    "dense tensors (to_dense())"
                )


_performer = _Performer(thread, NESTING, Casts(cast, rounded, map_floats), NAMES, FLOAT32)
perform = _performer.perform


class _RoundedLayer(LayerPlan):
    """The plan inside an emulated layer: it computes in float32, with rounded parameters."""

    low = DTYPES[LayerPlan.policy.dtype]
    natively = False
    layer_rule: Rule | None = None

    def __init__(self, parameters: Mapping[int, Tensor | Value], low: paddle.dtype) -> None:
        self._parameters = parameters
        self._low = low

    def inside(self, rule: Rule) -> Plan:
        return self

    def carry_out(self, operator: Operator, args: Sequence[object], kwargs: Keywords) -> object:
        """Call an operation inside the layer."""
        args, kwargs = _performer.converted(self._rounded, self._low, args, kwargs)
        return operator.call(*args, **kwargs)

    def _rounded(self, tensor: TensorT, low: paddle.dtype) -> TensorT:
        return rounded(tensor, low) if id(tensor) in self._parameters else tensor


def _plan_for_parts(plan: Plan, operator: Operator, parts: Parts) -> Plan | None:
    """Return the plan for the operations inside a composite; None where they follow no rule."""
    dtype = parts.dtype
    if parts.to is rounded or dtype is None:
        return _RoundedLayer(parts.parameters, dtype) if parts.parameters else None
    if parts.parameters:
        return plan.inside(Rule.FP32 if dtype is FLOAT32 else Rule.LOW)
    return plan.inside(Rule.UNTOUCHED) if operator.view and dtype is not FLOAT32 else None
