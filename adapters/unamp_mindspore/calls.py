"""One call of a MindSpore operation in a region, from its replacement to its kernel and back.

The function that `entry` returns is called first. It runs the original at once where no rule
changes the call; all other calls go to `carry_out`. Nearly all of those have only tensors and
numbers for arguments, and `carry_out` itself applies the rule, which is faster. The others go on to
`unamp.adapter.performing.Performer`, with the same results.

On the CPU MindSpore has few kernels for float16, which differ in how they sum, and nearly none for
bfloat16. So low is emulated there: inputs rounded to low, computed in float32, the result rounded
to low.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from mindspore import mint, ops
from mindspore._c_expression import typing as _typing

from unamp._function_types import Args, Function, Keywords
from unamp.adapter.float8 import Arithmetic
from unamp.adapter.performing import (
    AS_IT_IS,
    Casts,
    LayerPlan,
    Outcome,
    Parts,
    Performer,
    differing,
)
from unamp.policy import Rule
from unamp_mindspore import observing
from unamp_mindspore.casting import NESTING, cast, each, floats, map_floats, rounded, widened, write
from unamp_mindspore.operators import Operator
from unamp_mindspore.state import (
    DEVICE,
    DTYPES,
    FLOAT32,
    LOW,
    NAMES,
    Dtype,
    Plan,
    Tensor,
    dtype_of,
    on_cpu,
    setting,
    thread,
)  # fmt: skip

_FLOAT16, _BFLOAT16 = LOW
_NUMBERS = frozenset({int, bool, float, str, type(None)})


def entry(operator: Operator) -> Function:
    """Return the function that replaces an operation's original while a region is open."""
    call, name, layer = operator.call, operator.name, operator.layer
    order = tuple(operator.places) if operator.activation_only else ()

    def enter(*args: Any, **kwargs: Any) -> Any:
        plan = thread.plan
        if plan is None:
            return call(*args, **kwargs)
        # Most calls have only float32 inputs, and a rule that leaves those alone. The loop looks
        # for anything else, and runs at every call.
        if name not in plan.changes_float32:
            for value in (*args, *kwargs.values()) if kwargs else args:
                kind = type(value)
                if kind is Tensor:
                    if value._itemsize == 2:
                        # It may be low. Asking for the dtype itself takes twice as long.
                        break
                elif kind not in _NUMBERS and _has_low(value):
                    break
            else:
                # A layer's parameters are not among its arguments.
                if not layer or not _has_low(operator.parameters(args)):
                    thread.plan = plan.inside  # the operations inside it follow no rule
                    try:
                        return call(*args, **kwargs)
                    finally:
                        thread.plan = plan
        if kwargs and order:
            # A norm's activation is its first tensor in this order, not in the caller's.
            kwargs = {**{key: kwargs[key] for key in order if key in kwargs}, **kwargs}
        return plan.carry_out(operator, args, kwargs)

    enter.__name__ = enter.__qualname__ = name.rpartition(".")[2]
    return enter


def _has_low(value: object) -> bool:
    return any(dtype is not FLOAT32 for dtype in floats(value))


def carry_out(plan: Plan, operator: Operator, args: Args, kwargs: Keywords) -> object:
    """Return the result of a call under its rule."""
    # Whatever is not the plain case of emulation on the CPU goes to the performer.
    rule = plan.quick.get(operator)
    if rule is None or thread.sink is not None or setting(DEVICE) != "CPU":
        return _performer.perform(plan, operator, args, kwargs)
    seen = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        kind = type(value)
        if kind is Tensor or isinstance(value, Tensor):
            dtype = dtype_of(value)
            if dtype is not FLOAT32 and dtype is not _FLOAT16 and dtype is not _BFLOAT16:
                return _performer.perform(plan, operator, args, kwargs)
            seen.append(dtype)
        elif kind not in _NUMBERS and not (operator.bound and value is args[0]):
            return _performer.perform(plan, operator, args, kwargs)
    if not seen:
        return _performer.perform(plan, operator, args, kwargs)
    if rule is Rule.LOW:
        dtype = plan.low
    elif rule is Rule.FP32:
        dtype = FLOAT32
    elif seen.count(seen[0]) == len(seen):
        dtype = seen[0]
    else:
        dtype = differing(rule, FLOAT32, seen)
        if dtype is None and (_BFLOAT16 in seen or not plan.policy.active):
            # MindSpore promotes differing inputs itself, but not in products, and has no CPU kernel
            # that takes bfloat16 beside another dtype.
            dtype = FLOAT32
    if dtype is not None:
        to = cast if dtype is FLOAT32 else rounded
        args = each(to, dtype, args)
        if kwargs:
            kwargs = dict(zip(kwargs, each(to, dtype, kwargs.values()), strict=True))
    thread.plan = None  # the operations inside it follow no rule
    try:
        result = operator.call(*args, **kwargs)
    finally:
        thread.plan = plan
    return result if dtype is None or dtype is FLOAT32 else map_floats(result, dtype)


# --- all calls ------------------------------------------------------------------------------------


class _Performer(Performer[Plan, Operator]):
    dtype_kind = _typing.Type
    arithmetic = Arithmetic(mint.where, lambda tensor, axes: ops.amax(tensor, axes, keepdims=True))
    reporting = staticmethod(observing.report)

    def is_left_alone(
        self, plan: Plan, operator: Operator, op: str | None, args: Args, kwargs: Keywords
    ) -> bool:
        return operator.casts or op is None or plan.follows_parts(op)

    def is_native(self, operator: Operator, dtype: Dtype, args: Args) -> bool:
        return operator.view or not on_cpu()

    def call(
        self, plan: Plan, operator: Operator, args: Args, kwargs: Keywords, parts: Parts = AS_IT_IS
    ) -> object:
        if operator.layer and operator.activation_only and not parts.parameters:
            own = operator.parameters(args)
            if _has_low(own):  # MindSpore's norms take no bfloat16 parameters, and few take float16
                parts = Parts(own, cast, FLOAT32)
        before, thread.plan = thread.plan, _ConvertedLayer(parts) if parts.parameters else None
        try:
            return operator.call(*args, **kwargs)
        finally:
            thread.plan = before

    def carry_out_rule(
        self, plan: Plan, operator: Operator, rule: Rule, args: Args, kwargs: Keywords
    ) -> Outcome:
        run = super().carry_out_rule
        if operator.changing and (seen := self.seen(operator, args, kwargs)[0]):
            return self.call_in_place(plan, operator, seen, args, kwargs)
        if operator.op != "batch_norm" or operator.layer:
            # The primitive inside a layer updates the layer's statistics.
            return run(plan, operator, rule, args, kwargs)
        return self.updating(
            _statistics(operator, args, kwargs), partial(run, plan, operator, rule), args, kwargs
        )

    def widened(self, tensor: Tensor) -> Tensor:
        return widened(tensor)

    def write(self, tensor: Tensor, values: Tensor) -> None:
        write(tensor, values)

    def activation(self, kwargs: Keywords) -> str | None:
        return next((name for name, value in kwargs.items() if isinstance(value, Tensor)), None)

    def call_in_place(
        self, plan: Plan, operator: Operator, seen: Sequence[Dtype], args: Args, kwargs: Keywords
    ) -> Outcome:
        changed = next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        own = changed.dtype
        # A function that changes its first tensor has no other form: it is given a float32 copy.
        out_of_place = operator.call if operator.changing else operator.out_of_place
        if out_of_place is None or own is FLOAT32 or own not in NAMES or not on_cpu():
            if operator.changing and own in NAMES:
                args, kwargs = self.converted(cast, own, args, kwargs)
            return self.call(plan, operator, args, kwargs), seen[0], False
        args, kwargs = self.converted(cast, FLOAT32, args, kwargs)
        return changed.copy_(cast(out_of_place(*args, **kwargs), own)), own, True

    def copied(self, tensor: Tensor, dtype: Dtype | None) -> Tensor:
        return tensor.copy()

    def compute_low(self, plan: Plan, operator: Operator, args: Args, kwargs: Keywords) -> object:
        if not operator.changing:
            return super().compute_low(plan, operator, args, kwargs)
        args, kwargs = self.converted(self.copied, None, args, kwargs)
        return super().carry_out_rule(plan, operator, Rule.LOW, args, kwargs)[0]


def _statistics(operator: Operator, args: Args, kwargs: Keywords) -> Sequence[Tensor | None]:
    """Return the running statistics that a call of a batch norm updates."""
    if operator.bound:  # a primitive, which takes no names
        found: Sequence[Tensor | None] = args[4:6]
        return found
    return [operator.argument(name, args, kwargs) for name in ("running_mean", "running_var")]


_performer = _Performer(thread, NESTING, Casts(cast, rounded, map_floats), NAMES, FLOAT32)


class _ConvertedLayer(LayerPlan):
    """The plan inside a layer that is one operation: it casts each parameter once, at its use."""

    low = DTYPES[LayerPlan.policy.dtype]
    quick: Mapping[Operator, Rule] = {}

    def __init__(self, parts: Parts) -> None:
        self._parameters, self._to, self._dtype = parts
        self._converted: dict[int, Tensor] = {}

    @property
    def inside(self) -> Plan:
        return self

    def follows_parts(self, op: str) -> bool:
        return True

    def carry_out(self, operator: Operator, args: Args, kwargs: Keywords) -> object:
        """Call an operation inside the layer."""
        if operator.layer:
            return operator.call(*args, **kwargs)

        def run(args: Args, kwargs: Keywords) -> object:
            return _performer.call(
                self, operator, *_performer.converted(self._own, self._dtype, args, kwargs)
            )

        changed = _statistics(operator, args, kwargs) if operator.op == "batch_norm" else ()
        return _performer.updating(changed, run, args, kwargs)

    def _own(self, tensor: Tensor, dtype: Dtype) -> Tensor:
        key = id(tensor)
        if key not in self._parameters:
            return tensor
        if key not in self._converted:
            self._converted[key] = self._to(tensor, dtype)
        return self._converted[key]
