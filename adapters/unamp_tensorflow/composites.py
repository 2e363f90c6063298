"""One call of a composite operation: a function or layer of Python code that is one operation of the vocabulary.

`tf.nn.gelu` computes with `Erf` and `Mul`, a Keras `Dense` with a product and a sum: the composite operation's own rule holds
for all of its parts. What comes to one operation type of the same name (`tf.exp`) needs nothing here: the rule meets it in
`calls`.

A function gets other code while a region is open that needs it; whoever imported the function sees that, too. Layers get
another method `call`: AutoGraph reads the source of Keras's own.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from tensorflow.python.eager import context
from tensorflow.python.framework import dtypes
from tensorflow.python.util import nest

from unamp import amp_warnings
from unamp.adapter.keras_models import facts as keras_facts
from unamp.adapter.keras_policies import layer_path, states_float32
from unamp.adapter.observing import traced, traces, unreported
from unamp.adapter.patching import Patch
from unamp.adapter.performing import differing
from unamp.adapter.replacing import AttributePatch, CodePatch
from unamp.errors import BannedOperation
from unamp.policy import Rule
from unamp.vocabulary import vocabulary
from unamp_tensorflow import observing
from unamp_tensorflow.casting import EagerTensor, Variable, cast, convert, eligible_dtype, eligible_dtypes, execute, tensors
from unamp_tensorflow.composite_tensors import dispatches
from unamp_tensorflow.listing import always_emulated
from unamp_tensorflow.state import ELIGIBLE, FLOAT32, NAMES, Function, Plan, thread

__all__ = ["Composite"]

Args: TypeAlias = tuple[Any, ...]
Kwargs: TypeAlias = dict[str, Any]
#: A call's result, the number of the dtype that was computed in, and whether that was emulated.
Outcome: TypeAlias = tuple[Any, int, bool]


class Composite:
    """One function or one method of layers.

    Attributes:
        op: the operation's canonical name.
        path: TensorFlow's name for it, as the vocabulary spells it.
        layers: for a method of layers: each class, and the operation that it is. None for a function.
        original: what TensorFlow or Keras does.
        patch: puts `replacement` in its place.
    """

    __slots__ = ("layers", "op", "original", "patch", "path")

    original: Function
    patch: Patch

    def __init__(self, op: str, path: str, layers: Mapping[type, str] | None = None) -> None:
        self.op = op
        self.path = path
        self.layers = layers

    @classmethod
    def of_function(cls, op: str, path: str, function: types.FunctionType) -> Composite:
        """Return the composite operation that a function is."""
        made = cls(op, path)
        made.patch = CodePatch(function, made.replacement)
        return made

    @classmethod
    def of_layers(cls, op: str, home: type, layers: Mapping[type, str]) -> Composite:
        """Return the composite operation that the method `call` of a class is, which others may inherit."""
        made = cls(op, f"{home.__name__}.call", layers)
        # Keras reads the signature.
        made.patch = AttributePatch(home, "call", lambda original: functools.wraps(original)(made.replacement(original)))
        return made

    def operation(self, args: Args) -> str:
        """Return the operation that a call is; nothing for a layer of no operation that inherits the method (`Dot`)."""
        if self.layers is None:
            return self.op
        layers = self.layers
        return next((layers[of] for of in type(args[0]).__mro__ if of in layers), "")

    def replacement(self, original: Function) -> Function:
        """Return the replacement of the original while a region is open."""
        self.original = original
        # Not for layers, which have parameters besides their arguments.
        cast_op = self.op if self.layers is None else ""

        def enter(*args: Any, **kwargs: Any) -> Any:
            plan = thread.plan
            if plan is None or plan.within_composite:
                return original(*args, **kwargs)
            target = plan.cast_only.get(cast_op)
            if target is not None and not kwargs and thread.sink is None and thread.parameters is None:
                given = _cast_eagerly(args, target)
                if given is not None:
                    return convert(cast, target, _call(plan.for_parts, self, given, kwargs))
            return _perform(self, plan, args, kwargs)

        return enter


def _cast_eagerly(args: Args, target: int) -> Args | None:
    """Cast arguments that are eager tensors and variables, all of them eligible; None where there is anything else."""
    ctx = context._context
    if not ctx._thread_local_data.is_eager:
        return None
    given, number = [], 0
    for value in args:
        of = type(value)
        if of is EagerTensor or of is Variable:
            number = value._datatype_enum() if of is EagerTensor else value._dtype.as_datatype_enum
            if number != target:
                if number not in ELIGIBLE:
                    return None
                value = execute(ctx, "Cast", None, value, "DstT", target, "Truncate", False)
        elif of is not int and value is not None:
            return None
        given.append(value)
    return tuple(given) if number else None


# --- one call ----------------------------------------------------------------------------------------------------------------


def _perform(composite: Composite, plan: Plan, args: Args, kwargs: Kwargs) -> Any:
    op = composite.operation(args)
    if not op or dispatches(args, kwargs):
        return composite.original(*args, **kwargs)
    if plan.follows_parts(op):
        return _call(plan.for_parts_with_rules(op), composite, args, kwargs)
    rule = plan.rule(op)
    if rule is Rule.LOW and composite.layers is not None and plan.policy.active and states_float32(args[0]):
        amp_warnings.follows_the_region("tensorflow", type(args[0]).__name__, args[0].name, NAMES[plan.low])
    if thread.sink is not None and traced(op):
        given = list(tensors([args, kwargs]))
        if given or _table_alone(op):
            given = given[:1] if _activation_only(op) else [*given, *_own_parameters(composite, args)]
            state = observing.State(args[0] if composite.layers is not None and traces.shadow is not None else None)
            with unreported(thread) as observer:
                result, target, emulated = _carry_out(composite, op, rule, plan, args, kwargs)
            if not plan.policy.active and composite.layers is not None and args[0].compute_dtype == "float32":
                target = FLOAT32  # a norm takes low inputs and widens them itself

            def low(dtype: int) -> Any:
                state.check()
                return _carry_out(composite, op, Rule.LOW, plan.low_alone(NAMES[dtype]), args, kwargs)[0]

            path = composite.path if composite.layers is None else layer_path(args[0], composite.path)
            every = (*args, *kwargs.values())
            return observing.report(observer, op, path, rule, given, every, target, emulated, result, low)
    return _carry_out(composite, op, rule, plan, args, kwargs)[0]


def _carry_out(composite: Composite, op: str, rule: Rule, plan: Plan, args: Args, kwargs: Kwargs) -> Outcome:
    """Call a composite operation as its rule says."""
    own = _own_parameters(composite, args)
    found = _dtypes(op, own, args, kwargs)
    if rule is Rule.BANNED:
        if found:
            raise BannedOperation(plan.ban(op))
        rule = Rule.UNTOUCHED
    if not found:  # what makes numbers keeps its meaning; and symbols of Keras have no numbers yet
        no_rules = rule is Rule.UNTOUCHED or (composite.layers is None and _has_numbers(args, kwargs))
        return _call(plan.for_parts if no_rules else plan, composite, args, kwargs), 0, False
    target = _target(rule, plan.low, found)
    if not target:
        # All is float32, or the framework's own affair; but a layer's activation still has a rule of its own.
        has_activation = op in keras_facts().parts and rule is not Rule.UNTOUCHED
        parts = plan.for_parts_of_layer(op, FLOAT32) if has_activation else plan.for_parts
        return _call(parts, composite, args, kwargs), found[0], False
    if target == FLOAT32:
        parts = plan.for_parts_of_layer(op, target) if own else plan.for_parts
        result = _call(parts, composite, *_converted(FLOAT32, args, kwargs))
        return (convert(cast, FLOAT32, result) if rule is Rule.FP32 and _open(kwargs) else result), FLOAT32, False
    return _carry_out_low(composite, op, rule, plan, own, target, args, kwargs)


def _carry_out_low(
    composite: Composite, op: str, rule: Rule, plan: Plan, own: list[Any], target: int, args: Args, kwargs: Kwargs
) -> Outcome:
    emulated = _activation_only(op) or always_emulated(op)
    if emulated:
        result = _emulate(composite, plan, op, target, args, kwargs)
    elif own:
        result = _call_low_layer(plan.for_parts_of_layer(op, target), composite, own, target, *_converted(target, args, kwargs))
    else:
        result = _call(plan.for_parts, composite, *_converted(target, args, kwargs))
    if _open(kwargs) and not emulated and op not in keras_facts().parts:  # there an activation's result comes last
        result = convert(cast, target, result)
    if rule is Rule.LOW and plan.policy.widen_results:
        result = convert(cast, FLOAT32, result)
    return result, target, emulated


def _dtypes(op: str, own: list[Any], args: Args, kwargs: Kwargs) -> list[int]:
    """Return the dtypes of the eligible tensors that an operation's rule is about."""
    found = eligible_dtypes(args, kwargs)
    if _activation_only(op):
        return found[:1]
    if found or _table_alone(op):
        return [*found, *map(eligible_dtype, own)]
    return found


def _target(rule: Rule, low: int, found: list[int]) -> int:
    """Return the number of the dtype that a rule casts to; 0 to leave everything as it is."""
    if rule is Rule.LOW:
        return low
    if rule is Rule.FP32:
        return FLOAT32
    if rule is Rule.UNTOUCHED:
        return 0
    if len({*found}) > 1:
        return int(differing(rule, FLOAT32, found))
    return 0 if found[0] == FLOAT32 else found[0]


def _has_numbers(args: Args, kwargs: Kwargs) -> bool:
    """Return whether an operation has inputs, of dtypes that no rule casts: then none of its parts has a rule either."""
    inputs = nest.flatten([args, kwargs])
    return any(isinstance(getattr(each, "dtype", None), (dtypes.DType, np.dtype)) for each in inputs)


def _emulate(composite: Composite, plan: Plan, op: str, target: int, args: Args, kwargs: Kwargs) -> Any:
    """Round inputs to low, compute in float32, and round the result to low; of a norm the activation alone is rounded."""
    first = next(tensors([args, kwargs])) if _activation_only(op) else None

    def to(tensor: Any, dtype: int) -> Any:
        return cast(cast(tensor, target), dtype) if first is None or tensor is first else cast(tensor, dtype)

    parts = plan.for_parts if composite.layers is None else plan.for_parts_of_layer(op, FLOAT32)
    result = _call(parts, composite, convert(to, FLOAT32, args), convert(to, FLOAT32, kwargs))
    if first is not None and isinstance(result, (tuple, list)):  # the statistics stay as they are
        return type(result)([cast(result[0], target), *result[1:]])
    return convert(cast, target, result)


def _call_low_layer(plan: Plan, composite: Composite, own: list[Any], target: int, args: Args, kwargs: Kwargs) -> Any:
    """Call the original with the layer's parameters cast once, however often its code uses them."""
    before = thread.parameters
    thread.parameters = {id(value): (value, cast(value, target)) for value in own}
    try:
        return _call(plan, composite, args, kwargs)
    finally:
        thread.parameters = before


def _call(plan: Plan | None, composite: Composite, args: Args, kwargs: Kwargs) -> Any:
    """Call the original with a plan in force for its parts."""
    before, thread.plan = thread.plan, plan
    try:
        return composite.original(*args, **kwargs)
    finally:
        thread.plan = before


def _converted(target: int, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    return convert(cast, target, args), convert(cast, target, kwargs)


def _open(kwargs: Kwargs) -> bool:
    """Return whether the caller left the result's dtype open: one that is named is an explicit cast."""
    return kwargs.get("dtype") is None


def _table_alone(op: str) -> bool:
    """Return whether an operation's rule is about its parameters alone: its inputs are whole numbers."""
    return op == "embedding"


@cache
def _activation_only(op: str) -> bool:
    return vocabulary()[op].group == "norm"


def _own_parameters(composite: Composite, args: Args) -> list[Any]:
    return [] if composite.layers is None else _parameters(args[0])


def _parameters(layer: Any) -> list[Any]:
    """Return a layer's parameters, with those of the layers that it is made of."""
    mine = [value for value in vars(layer).values() if eligible_dtype(value)]
    return mine + [value for inner in vars(layer).get("_layers", ()) for value in _parameters(inner)]
