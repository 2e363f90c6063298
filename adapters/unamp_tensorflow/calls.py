"""What stands between a caller and an operation type while a region is open.

The wrappers that TensorFlow generates for its operation types look two functions up at every call: one executes eagerly,
one adds a node to a graph. Both are replaced, and both do the same: cast the inputs, call the original, and where the
dtype has no kernel (*emulated*) round the inputs, compute in float32, and round the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import execute as recording
from tensorflow.python.eager.core import _FallbackException
from tensorflow.python.framework import op_def_library

from unamp.adapter.observing import traced
from unamp.adapter.state import suspended
from unamp.errors import BannedOperation
from unamp.policy import Rule
from unamp.vocabulary import vocabulary
from unamp_tensorflow import observing
from unamp_tensorflow.casting import EagerTensor, Variable, cast, execute, kind
from unamp_tensorflow.listing import OpType, has_kernel
from unamp_tensorflow.state import ELIGIBLE, FLOAT32, NAMES, thread

__all__ = ["Action", "add_node", "execute_eagerly", "must_record"]

_add_node = op_def_library._apply_op_helper
_must_record = recording.must_record_gradient


def execute_eagerly(ctx: Any, op: str, name: Any, *args: Any) -> Any:
    """Stands for `TFE_Py_FastPathExecute`."""
    plan = thread.plan
    if plan is None:
        return execute(ctx, op, name, *args)
    found = plan.actions.get(op)
    if found is None:
        return execute(ctx, op, name, *args)
    return found.eager(ctx, name, args)


def add_node(original: Callable[..., Any]) -> Callable[..., Any]:
    """Stands for `_apply_op_helper`."""

    def _apply_op_helper(op_type_name: str, name: Any = None, **keywords: Any) -> Any:
        plan = thread.plan
        if thread.recorded:  # whoever added the node before did not ask
            thread.recorded = False
        if plan is None:
            return original(op_type_name, name, **keywords)
        found = plan.actions.get(op_type_name)
        if found is None:
            return original(op_type_name, name, **keywords)
        return found.graph(original, name, keywords)

    return _apply_op_helper


def must_record(original: Callable[..., Any]) -> Callable[..., Any]:
    """Stands for `must_record_gradient`, which a wrapper asks once its node is in the graph."""

    def must_record_gradient() -> Any:
        if thread.recorded:  # with the results as they were before they were cast
            thread.recorded = False
            return False
        return original()

    return must_record_gradient


class Action:
    """What a rule does to one operation type.

    Args:
        op_type: the operation type.
        rule: the rule.
        low: the number of the policy's dtype; 0 where no policy is in force, and operations are only reported.
        widen: whether a low result is cast back to float32 at once.
        advice: for a banned operation.
    """

    def __init__(self, op_type: OpType, rule: Rule, low: int, *, widen: bool = False, advice: str = "") -> None:
        self.op_type = op_type
        self.stated = rule
        # Nothing in TensorFlow promotes: where a rule leaves differing inputs alone, they would raise. What writes to a
        # variable has the variable's dtype, whatever the rule.
        self.rule = Rule.WIDEST if rule is Rule.UNTOUCHED or op_type.changes_state else rule
        self._low = low
        self._widen = widen and rule is Rule.LOW
        self._advice = advice
        self._makes = op_type.op is not None and vocabulary()[op_type.op].group in ("creation", "random")
        self._complete = all(has_kernel(op_type.name, number) for number in NAMES)
        pair = len(op_type.positions) == 2 and not op_type.lists and not op_type.fixed
        self._agreeable = pair and self._complete and self.rule is Rule.WIDEST

    @property
    def idle(self) -> bool:
        """Whether there is nothing to be done, whatever the inputs."""
        return self.rule is Rule.WIDEST and not self.op_type.several and self._complete

    # Everything that an eager operation passes through is written out: a call more is a microsecond.

    def eager(self, ctx: Any, name: Any, args: tuple[Any, ...]) -> Any:
        """Execute under the rule."""
        op_type = self.op_type
        positions = op_type.positions
        if thread.sink is not None and traced(op_type.op):
            return observing.report(self, lambda: self._eager(ctx, name, args), [args[n] for n in positions])
        if self._agreeable:
            a, b = args[positions[0]], args[positions[1]]
            if type(a) is EagerTensor and type(b) is EagerTensor and a._datatype_enum() == b._datatype_enum():
                return execute(ctx, op_type.name, name, *args)
        return self._eager(ctx, name, args)

    def _eager(self, ctx: Any, name: Any, args: tuple[Any, ...]) -> Any:
        op_type = self.op_type
        positions = op_type.positions
        target, emulated = self.target([args[n] for n in positions])
        if not target:
            return self._execute(ctx, name, args)
        given = list(args)
        if emulated:
            for n in positions:
                given[n] = _in_float32(_cast(ctx, given[n], target))
        else:
            for n in positions:
                given[n] = _cast(ctx, given[n], target)
        for n in op_type.fixed:
            given[n] = _cast(ctx, given[n], FLOAT32)
        result = self._execute(ctx, name, given)
        if emulated or op_type.widens or (self._widen and target != FLOAT32):
            return self._finished(result, FLOAT32 if self._widen else target)
        return result

    def _execute(self, ctx: Any, name: Any, given: Sequence[Any]) -> Any:
        try:
            return execute(ctx, self.op_type.name, name, *given)
        except _FallbackException:
            # A list in Python, an attribute to convert: its wrapper would start anew, with inputs from before any cast.
            anew = getattr(tf.raw_ops, self.op_type.name, None)
            if anew is None:
                raise
        count = len(self.op_type.inputs)
        inputs = dict(zip(self.op_type.inputs, given[:count], strict=True))
        attrs = dict(zip(given[count::2], given[count + 1 :: 2], strict=True))
        with suspended(thread):
            result = anew(**inputs, **attrs, name=name)
        return list(result) if isinstance(result, tuple) else result

    def graph(self, original: Callable[..., Any], name: Any, keywords: dict[str, Any]) -> Any:
        """Add a node under the rule."""
        op_type = self.op_type
        target, emulated = self.target([keywords[n] for n in op_type.names])
        if not target:
            return original(op_type.name, name, **keywords)
        for key in op_type.names:
            value = _cast(None, keywords[key], target)
            keywords[key] = _in_float32(value) if emulated else value
        for key in op_type.fixed.values():
            keywords[key] = _cast(None, keywords[key], FLOAT32)
        added = original(op_type.name, name, **keywords)
        if not emulated and not op_type.widens and not (self._widen and target != FLOAT32):
            return added
        kind_of, definition, node, outputs = added
        if _must_record():
            attrs = [part for key in op_type.attrs for part in (key, node.get_attr(key))]
            recording.record_gradient(op_type.name, node.inputs, tuple(attrs), outputs)
        finished = self._finished(outputs, FLOAT32 if self._widen else target)
        thread.recorded = True
        return kind_of, definition, node, finished

    def target(self, values: Sequence[Any]) -> tuple[int, bool]:
        """The dtype that the rule casts to, 0 for none; and whether a low one must be emulated."""
        rule = self.rule
        if not self._low:
            return 0, False
        found = {number for value in values for number in _kinds(value)}
        if rule is Rule.LOW or rule is Rule.FP32:
            if not found and (self._makes or any(hasattr(value, "dtype") for value in values)):
                return 0, False
            if rule is Rule.FP32:
                return FLOAT32, False
            return self._low, not has_kernel(self.op_type.name, self._low)
        if rule is Rule.BANNED and found:
            raise BannedOperation(f"{self.op_type.op} is banned by the policy in force. {self._advice}".rstrip())
        if self.op_type.fixed:
            number = next(iter(found)) if len(found) == 1 else FLOAT32
            return number, not has_kernel(self.op_type.name, number)
        if len(found) > 1:
            return FLOAT32, False
        agreed = next(iter(found), 0)
        if agreed and agreed != FLOAT32 and not has_kernel(self.op_type.name, agreed):
            return agreed, True
        return 0, False

    def _finished(self, result: Any, target: int) -> Any:
        """The results that have the inputs' dtype, cast; of a norm the first alone: statistics stay as they are."""
        if isinstance(result, tf.Operation) or result is None:
            return result
        if not isinstance(result, (list, tuple)):
            return cast(result, target)
        ours = self.op_type.results
        if len(ours) != len(result):  # one output that is a list
            return [cast(each, target) for each in result]
        if self.op_type.activation_only:
            ours = (True, *(False for _ in ours[1:]))
        return [cast(each, target) if mine else each for each, mine in zip(result, ours, strict=True)]


def _kinds(value: Any) -> list[int]:
    if isinstance(value, (list, tuple)):
        return [number for each in value if (number := kind(each))]
    number = kind(value)
    return [number] if number else []


def _cast(ctx: Any, value: Any, target: int) -> Any:
    if ctx is not None and thread.parameters is None:
        of = type(value)
        if of is EagerTensor or of is Variable:
            number = value._datatype_enum() if of is EagerTensor else value._dtype.as_datatype_enum
            if number == target or number not in ELIGIBLE:
                return value
            return execute(ctx, "Cast", None, value, "DstT", target, "Truncate", False)
    if isinstance(value, (list, tuple)):
        if any(hasattr(each, "dtype") for each in value):
            return [_cast(ctx, each, target) for each in value]
        return cast(tf.convert_to_tensor(value), target) if value else value
    if isinstance(value, np.ndarray):
        return cast(tf.convert_to_tensor(value), target)
    return cast(value, target)


def _in_float32(value: Any) -> Any:
    if isinstance(value, list):
        return [_in_float32(each) for each in value]
    return cast(value, FLOAT32)
