"""What stands between a caller and one of MindSpore's operations while a region is open.

Every function, method, primitive and layer of MindSpore that the vocabulary has a name for is one operation, and one whole:
what it computes with inside follows no rule of its own.

On the CPU MindSpore has kernels for float16 that are rare and differ in how they sum, and nearly none for bfloat16. There,
low is emulated: inputs rounded to low, computed in float32, the result rounded to low.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from mindspore._c_expression import typing as _typing

from unamp.adapter.observing import traced
from unamp.adapter.performing import performing
from unamp.adapter.performing import target as target_of
from unamp.policy import Rule
from unamp.vocabulary import vocabulary
from unamp_mindspore import observing
from unamp_mindspore.casting import cast, convert, floats, map_floats, rounded, to_low
from unamp_mindspore.entries import EVERYTHING
from unamp_mindspore.facts import facts
from unamp_mindspore.state import FLOAT32, NAMES, Tensor, on_cpu, thread

__all__ = ["Operator", "perform"]

#: What can be handed over as a dtype.
_DTYPE = _typing.Type


class Operator:
    """One operation as MindSpore's code calls it, and what a rule needs to know about it.

    Attributes:
        op: the vocabulary's name.
        name: MindSpore's own name for what is called.
        call: the original.
        layer: whether its parameters are not among its arguments: a cell's `construct`.
        bound: whether its first argument is no input: a primitive or a cell.
        inplace: whether it changes its first argument.
        twin: for one in place, what gives the same as a new tensor.
        ops: the operations that it may be; more than one where one function does several.
        which: finds out which of them from the arguments.
        activation_only: whether a rule casts the first tensor alone (norms, whose parameters and statistics stay float32).
        view: whether it runs natively in every dtype.
        casts: whether it is an explicit cast, which no rule changes.
    """

    __slots__ = ("activation_only", "bound", "call", "casts", "inplace", "layer", "name", "op", "ops", "twin", "view", "which")

    def __init__(
        self,
        op: str,
        name: str,
        call: Callable[..., Any],
        *,
        layer: bool = False,
        bound: bool = False,
        inplace: bool = False,
        twin: Callable[..., Any] | None = None,
        ops: Iterable[str] = (),
        which: Callable[[Any, Any], str] | None = None,
    ) -> None:
        self.op = op
        self.ops = frozenset((op, *ops))
        self.name = name
        self.call = call
        self.layer = layer
        self.bound = bound
        self.inplace = inplace
        self.twin = twin
        self.which = which
        self.activation_only = vocabulary()[op].group == "norm"
        self.view = op in facts().views
        self.casts = vocabulary()[op].group == "cast"

    def parameters(self, args: Any) -> dict[int, Any]:
        """The parameters that are not among the arguments, by their ids."""
        return _parameters(args[0]) if self.layer else {}


def perform(operator: Operator, plan: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Carry out the rule for one call."""
    op = operator.op if operator.which is None else operator.which(args, kwargs)
    if operator.casts or plan.passes(op):
        return operator.call(*args, **kwargs)
    rule = plan.rule(op)
    if thread.sink is not None and traced(op):
        return observing.report(op, operator, rule, lambda: _perform(operator, op, rule, plan, args, kwargs), args, kwargs)
    return _perform(operator, op, rule, plan, args, kwargs)[0]


def _carried_out(operator: Operator, rule: Rule, plan: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    own = operator.parameters(args)
    seen = floats((args, kwargs, own))
    if not seen:
        return _quietly(operator, None, args, kwargs), None, False
    if operator.inplace:
        return _inplace(operator, seen, args, kwargs)
    if operator.activation_only and rule is not Rule.FP32:
        seen = seen[:1]
    mixed = seen.count(seen[0]) != len(seen)
    target = target_of(rule, plan.low, FLOAT32, seen, mixed)
    if target is not None and rule is not Rule.UNTOUCHED and _names_dtype(args, kwargs):
        target = None if FLOAT32 in seen else seen[0]
    if target is None:
        return _quietly(operator, None, args, kwargs), seen[0], False
    if target is FLOAT32:
        args, kwargs = _converted(cast, FLOAT32, args, kwargs)
        return _quietly(operator, Inside(own, cast, FLOAT32) if own else None, args, kwargs), FLOAT32, False
    if operator.activation_only:
        own = {}
    if operator.view or not on_cpu():
        if mixed or seen[0] is not target:
            args, kwargs = _converted_to_low(operator, to_low, target, args, kwargs)
        return _quietly(operator, Inside(own, to_low, target) if own else None, args, kwargs), target, False
    args, kwargs = _converted_to_low(operator, rounded, target, args, kwargs)
    result = _quietly(operator, Inside(own, rounded, target) if own else None, args, kwargs)
    if operator.activation_only and isinstance(result, tuple):  # the statistics stay as they are
        return (cast(result[0], target), *result[1:]), target, True
    return map_floats(result, target), target, True


_perform = performing(_carried_out, floats, lambda result: map_floats(result, FLOAT32))


def _quietly(operator: Operator, inside: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Call the original; what it is made of follows another plan, or none."""
    plan, thread.plan = thread.plan, inside
    try:
        return operator.call(*args, **kwargs)
    finally:
        thread.plan = plan


class Inside:
    """The plan inside a layer that is one operation: its parameters are converted, each once, where they are used.

    The layer itself is not changed: other threads may be using it.
    """

    busy = EVERYTHING

    def __init__(self, parameters: dict[int, Any], to: Callable[[Any, Any], Any], dtype: Any) -> None:
        self._parameters = parameters
        self._to = to
        self._dtype = dtype
        self._converted: dict[int, Any] = {}

    def carry_out(self, operator: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
        """Call an operation inside the layer."""
        if operator.layer:
            return operator.call(*args, **kwargs)
        args, kwargs = _converted(self._own, self._dtype, args, kwargs)
        return _quietly(operator, None, args, kwargs)

    def _own(self, tensor: Any, dtype: Any) -> Any:
        key = id(tensor)
        if key not in self._parameters:
            return tensor
        if key not in self._converted:
            self._converted[key] = self._to(tensor, dtype)
        return self._converted[key]


def _parameters(cell: Any) -> dict[int, Any]:
    """A cell's parameters by their ids, those of the cells in it included."""
    found = {}
    for _, home in cell.cells_and_names():
        own = vars(home)  # what somebody set over a parameter goes before it, as for whoever asks the cell
        held = [own.get(name, value) for name, value in home._params.items()]
        for value in (*held, *(each for group in own.values() if isinstance(group, (tuple, list)) for each in group)):
            if isinstance(value, Tensor):
                found[id(value)] = value
    return found


def _names_dtype(args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether the caller named the result's dtype: an explicit cast, which no rule changes."""
    return kwargs.get("dtype") is not None or any(isinstance(value, _DTYPE) and value in NAMES for value in args)


def _converted(to: Callable[[Any, Any], Any], dtype: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return [convert(to, dtype, value) for value in args], {k: convert(to, dtype, value) for k, value in kwargs.items()}


def _converted_to_low(
    operator: Operator, to: Callable[[Any, Any], Any], dtype: Any, args: Any, kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    if not operator.activation_only:
        return _converted(to, dtype, args, kwargs)
    first = 1 if operator.bound else 0
    if len(args) > first:
        before, activation, rest = args[:first], args[first], args[first + 1 :]
        rest, kwargs = _converted(cast, FLOAT32, rest, kwargs)
        return [*before, convert(to, dtype, activation), *rest], kwargs
    name = next(name for name, value in kwargs.items() if isinstance(value, Tensor))
    _, others = _converted(cast, FLOAT32, (), kwargs)
    return args, {**others, name: to(kwargs[name], dtype)}


def _inplace(operator: Operator, seen: list[Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """An in-place operation: no rule changes it, but on a low tensor it must work."""
    target = args[0]
    own = target.dtype
    if operator.twin is None or own is FLOAT32 or own not in NAMES or not on_cpu():
        return _quietly(operator, None, args, kwargs), seen[0], False
    args, kwargs = _converted(cast, FLOAT32, args, kwargs)
    return target.copy_(cast(operator.twin(*args, **kwargs), own)), own, True
