"""One call of an operation type, from the patched hook to TensorFlow's own function and back.

The wrappers that TensorFlow generates for its operation types look up two functions at every call:
`TFE_Py_FastPathExecute` executes eagerly, `_apply_op_helper` adds a node to a graph. Both are
replaced while a region is open, and both replacements do the same: they cast the inputs and call
the original. Where the dtype has no kernel they emulate it: inputs rounded to low, computed in
float32, the result rounded to low.

These two are private, since nothing public serves. `tf.experimental.dispatch_for_api` works for a
user's own types, never for plain tensors; callbacks of `op_callbacks` run after an operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import execute as recording
from tensorflow.python.eager.core import _FallbackException

from unamp._function_types import Keywords
from unamp.adapter.observing import traced
from unamp.adapter.performing import differing
from unamp.adapter.replacing import as_replacement
from unamp.adapter.shadowing import IN_PLACE, LeftOut
from unamp.adapter.state import suspended
from unamp.errors import BannedOperation
from unamp.policy import Rule
from unamp.vocabulary import vocabulary
from unamp_tensorflow import observing
from unamp_tensorflow.casting import EagerTensor, cast, eligible_dtype, execute
from unamp_tensorflow.composite_tensors import is_dispatched
from unamp_tensorflow.kept_calls import before_type
from unamp_tensorflow.listing import OpType, has_kernel, raw_names
from unamp_tensorflow.state import FLOAT32, NAMES, thread

if TYPE_CHECKING:
    from unamp_tensorflow.state import Added, Outputs, Value

_must_record = recording.must_record_gradient


def execute_eagerly(ctx: object, op: str, name: str | None, *args: Value) -> Outputs:
    """Execute an operation type under its rule, in place of `TFE_Py_FastPathExecute`."""
    plan = thread.plan
    if plan is None:
        return execute(ctx, op, name, *args)
    found = plan.actions[op]
    if found is None:
        return execute(ctx, op, name, *args)
    return found.eager(ctx, name, args)


@as_replacement
def add_node(
    original: Callable[..., Added], /, op_type_name: str, name: str | None = None, **keywords: Any
) -> Added:
    """Add a node to a graph under its rule, in place of `_apply_op_helper`."""
    plan = thread.plan
    if thread.recorded:  # left by a node whose wrapper did not ask `must_record_gradient`
        thread.recorded = False
    if plan is None:
        return original(op_type_name, name, **keywords)
    found = plan.actions[op_type_name]
    if found is None:
        return original(op_type_name, name, **keywords)
    return found.graph(original, name, keywords)


@as_replacement
def must_record(original: Callable[[], bool]) -> bool:
    """Return whether a wrapper must record its node on the tape, for `must_record_gradient`.

    The wrapper would record the results that `_apply_op_helper` returned to it. Where a rule has
    cast these, the tape needs the node's own results: `OpTypeAction.graph` has recorded them
    already, and the answer is False.
    """
    if thread.recorded:
        thread.recorded = False
        return False
    return original()


class OpTypeAction:
    """A rule, made ready for one operation type; see `unamp_tensorflow.state.Action`.

    Args:
        low: the number of the policy's dtype; 0 where operations are only reported, without a
            policy.
        widen: whether a low result is cast back to float32 at once.
        ban: the text of the error for a banned operation.
    """

    def __init__(
        self, op_type: OpType, rule: Rule, low: int, *, widen: bool = False, ban: str = ""
    ) -> None:
        self._op_type = op_type
        self._stated = rule
        # TensorFlow promotes no inputs: if a rule left differing ones alone, the call would raise.
        # An operation that writes to a variable computes in the variable's dtype under any rule.
        self._rule = Rule.WIDEST if rule is Rule.UNTOUCHED or op_type.changes_state else rule
        self._low = low
        self._widen = widen and rule is Rule.LOW
        self._ban = ban
        self._makes_numbers = op_type.op is not None and vocabulary()[op_type.op].group in (
            "creation",
            "random",
        )

    # These are cached, and not set in `__init__`: asking TensorFlow for kernels may take a
    # millisecond.

    @cached_property
    def _leaves_agreeing(self) -> bool:
        looks = self._rule in (Rule.WIDEST, Rule.NARROWEST)
        return looks and all(has_kernel(self._op_type.name, number) for number in NAMES)

    @cached_property
    def _of_two(self) -> bool:
        op_type = self._op_type
        return (
            len(op_type.positions) == 2
            and not op_type.lists
            and not op_type.fixed
            and self._leaves_agreeing
        )

    @property
    def needless(self) -> bool:
        """Return whether there is nothing to be done, whatever the inputs."""
        return not self._op_type.several and self._leaves_agreeing

    def eager(self, ctx: object, name: str | None, args: tuple[Value, ...]) -> Outputs:
        """Execute under the rule."""
        op_type = self._op_type
        if thread.sink is not None and op_type.op is not None and traced(op_type.op):
            given = [args[n] for n in op_type.positions]
            target, emulated = self._target(given)
            written = before_type(op_type, args)
            result = self._eager(ctx, name, args)
            return observing.report(
                thread.sink, op_type.op, op_type.name, self._stated, given, args, target,
                emulated, result, lambda low: self._second(low, ctx, name, args), written,
            )  # fmt: skip
        if self._of_two:  # most sums have two inputs that agree: a quick check, and no cast
            first, second = op_type.positions
            a, b = args[first], args[second]
            if (
                type(a) is EagerTensor
                and type(b) is EagerTensor
                and a._datatype_enum() == b._datatype_enum()
            ):
                return execute(ctx, op_type.name, name, *args)
        return self._eager(ctx, name, args)

    def _second(self, low: int, ctx: object, name: str | None, args: tuple[Value, ...]) -> Outputs:
        if self._op_type.changes_state:
            raise LeftOut(IN_PLACE)
        return OpTypeAction(self._op_type, Rule.LOW, low)._eager(ctx, name, args)

    def _eager(self, ctx: object, name: str | None, args: tuple[Value, ...]) -> Outputs:
        op_type = self._op_type
        positions = op_type.positions
        target, emulated = self._target([args[n] for n in positions])
        if not target and not op_type.fixed:
            return self._execute(ctx, name, args)
        given = list(args)
        for n in op_type.fixed:
            given[n] = _cast(given[n], FLOAT32)
        if not target:
            return self._execute(ctx, name, given)
        for n in positions:
            given[n] = _cast(given[n], target)
            if emulated:
                given[n] = _cast(given[n], FLOAT32)
        result = self._execute(ctx, name, given)
        if emulated or op_type.widens or (self._widen and target != FLOAT32):
            return self._finished(result, FLOAT32 if self._widen else target)
        return result

    def _execute(self, ctx: object, name: str | None, given: Sequence[Value]) -> Outputs:
        try:
            return execute(ctx, self._op_type.name, name, *given)
        except _FallbackException:
            if any(map(is_dispatched, given)):
                raise  # the wrapper dispatches to code for the parts, whose calls come back here
            # TensorFlow leaves some arguments to Python: lists, attributes to convert. The wrapper
            # would start again with the inputs before the casts, so the raw operation is called.
            anew = getattr(tf.raw_ops, self._op_type.name, None)
            if anew is None:
                raise
        count = len(self._op_type.inputs)
        keywords = raw_names(self._op_type.name, (*self._op_type.inputs, *given[count::2]))
        values = (*given[:count], *given[count + 1 :: 2])
        with suspended(thread):
            result = anew(**dict(zip(keywords, values, strict=True)), name=name)
        return list(result) if isinstance(result, tuple) else result

    def graph(self, original: Callable[..., Added], name: str | None, keywords: Keywords) -> Added:
        """Add a node under the rule."""
        op_type = self._op_type
        target, emulated = self._target([keywords[n] for n in op_type.names])
        for key in op_type.fixed.values():
            keywords[key] = _cast(keywords[key], FLOAT32)
        if not target:
            return original(op_type.name, name, **keywords)
        for key in op_type.names:
            keywords[key] = _cast(keywords[key], target)
            if emulated:
                keywords[key] = _cast(keywords[key], FLOAT32)
        added = original(op_type.name, name, **keywords)
        if not emulated and not op_type.widens and not (self._widen and target != FLOAT32):
            return added
        attr_types, definition, node, outputs = added
        # The wrapper gets cast outputs, and must not record those: see `must_record`.
        if _must_record():
            attrs = [part for key in op_type.attrs for part in (key, node.get_attr(key))]
            recording.record_gradient(op_type.name, node.inputs, tuple(attrs), outputs)
        finished = self._finished(outputs, FLOAT32 if self._widen else target)
        thread.recorded = True
        return attr_types, definition, node, finished

    def _target(self, values: Sequence[object]) -> tuple[int, bool]:
        """Return the number of the dtype to cast to, 0 for none, and whether to emulate it."""
        rule = self._rule
        if not self._low:
            return 0, False
        several = (value if isinstance(value, (list, tuple)) else (value,) for value in values)
        found = {number for each in several for number in map(eligible_dtype, each)} - {0}
        if rule is Rule.LOW or rule is Rule.FP32:
            # Inputs of other dtypes follow no rule. Lists of numbers do: they become float32.
            if not found and (
                self._makes_numbers or any(hasattr(value, "dtype") for value in values)
            ):
                return 0, False
            if rule is Rule.FP32:
                return FLOAT32, False
            return self._low, not has_kernel(self._op_type.name, self._low)
        if rule is Rule.BANNED and found:
            raise BannedOperation(self._ban)
        if self._op_type.fixed:
            number = next(iter(found)) if len(found) == 1 else FLOAT32
            return number, not has_kernel(self._op_type.name, number)
        agreed = next(iter(found), 0)
        if len(found) > 1:
            agreed = differing(rule, FLOAT32, [*found])
            if agreed != FLOAT32:
                return agreed, not has_kernel(self._op_type.name, agreed)
            return FLOAT32, False
        if agreed and agreed != FLOAT32 and not has_kernel(self._op_type.name, agreed):
            return agreed, True
        return 0, False

    def _finished(self, result: Outputs, target: int) -> Outputs:
        """Return the result, with the outputs cast that have the inputs' dtype.

        Only the first output of a norm is cast: the others are statistics.
        """
        if isinstance(result, tf.Operation) or result is None:
            return result
        if not isinstance(result, (list, tuple)):
            return cast(result, target)
        ours = self._op_type.results
        if len(ours) != len(result):  # the only output is a list
            return [cast(each, target) for each in result]
        if self._op_type.activation_only:
            ours = (True, *(False for _ in ours[1:]))
        return [
            cast(each, target) if mine else each for each, mine in zip(result, ours, strict=True)
        ]


def _cast(value: Value, target: int) -> Value:
    """Return an input in a dtype; arrays and lists become tensors."""
    if isinstance(value, (list, tuple)):
        if any(hasattr(each, "dtype") for each in value):
            return [_cast(each, target) for each in value]
        return cast(tf.convert_to_tensor(value), target) if value else value
    if isinstance(value, np.ndarray):
        return cast(tf.convert_to_tensor(value), target)
    return cast(value, target)
