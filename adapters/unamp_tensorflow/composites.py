"""One call of a composite operation: a function or layer that is one operation of the vocabulary.

`tf.nn.gelu` computes with `Erf` and `Mul`, a Keras `Dense` with a product and a sum: the composite
operation's own rule holds for all of its parts. `unamp.adapter.performing.Performer` carries the
rule out, with what it needs to know of TensorFlow from here. A function that only calls one
operation type of the same name (`tf.exp`) is no composite: `calls` carries the rule out.

While a region is open that needs it, a function has other code, so that names which were imported
before are patched, too. Layers get another method `call` instead: AutoGraph reads the source of
Keras's own.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from tensorflow.python.util import nest

from unamp import amp_warnings
from unamp._function_types import Function, Keywords
from unamp.adapter.arguments import Nesting
from unamp.adapter.keras_models import facts as keras_facts
from unamp.adapter.keras_policies import layer_path, states_float32
from unamp.adapter.observing import unreported
from unamp.adapter.open_traces import traces
from unamp.adapter.patching import Patch
from unamp.adapter.performing import AS_IT_IS, Casts, Operator, Outcome, Parts, Performer
from unamp.adapter.replacing import AttributePatch, CodePatch
from unamp.policy import Rule
from unamp.vocabulary import vocabulary
from unamp_tensorflow import observing
from unamp_tensorflow.casting import cast, convert, eligible_dtype, eligible_dtypes, tensors
from unamp_tensorflow.composite_tensors import dispatches
from unamp_tensorflow.kept_calls import before
from unamp_tensorflow.listing import always_emulated
from unamp_tensorflow.state import ELIGIBLE, FLOAT32, NAMES, Plan, thread
from unamp_tensorflow.stated_dtypes import in_stated_dtype

if TYPE_CHECKING:
    from unamp_tensorflow.state import SomeTensor, Value


class Composite(Operator):
    """One function or one method of layers; see `unamp.adapter.performing.Operator`.

    Attributes:
        op: the operation's canonical name; for a method that several operations share, one of them.
        patch: makes calls follow rules while it is applied.
    """

    __slots__ = ("patch",)

    op: str
    patch: Patch

    @classmethod
    def of_function(cls, op: str, path: str, function: types.FunctionType) -> Composite:
        """Return the composite operation of a function, whose spelling is `path`."""
        made = cls(op, path, function)

        def replacement(original: Function) -> Function:
            made.call = original

            def enter(*args: Any, **kwargs: Any) -> Any:
                plan = thread.plan
                if plan is None or plan.within_composite:
                    return original(*args, **kwargs)
                return _performer.perform(plan, made, args, kwargs)

            return enter

        made.patch = CodePatch(function, replacement)
        return made

    @classmethod
    def of_layers(cls, op: str, home: type, layers: Mapping[type, str]) -> Composite:
        """Return the composite operation of the method `call` of a class.

        Other classes may inherit the method.

        Args:
            op: the operation of one of these classes.
            layers: the operations of all classes of layers that are one.
        """
        path = f"{home.__name__}.call"

        def replacement(original: Function) -> Function:
            composites: dict[str, Composite] = {}

            @functools.wraps(original)  # Keras reads the signature
            def call(*args: Any, **kwargs: Any) -> Any:
                plan = thread.plan
                if plan is None or plan.within_composite:
                    return original(*args, **kwargs)
                op = next((layers[of] for of in type(args[0]).__mro__ if of in layers), None)
                if op is None:  # a layer that is no operation, but inherits the method (`Dot`)
                    return original(*args, **kwargs)
                if op not in composites:
                    composites[op] = cls(op, path, original, layer=True, bound=True)
                return _performer.perform(plan, composites[op], args, kwargs)

            return call

        made = cls(op, path, vars(home)["call"], layer=True, bound=True)
        made.patch = AttributePatch(home, "call", replacement)
        return made

    def parameters(self, args: Sequence[Value]) -> Mapping[int, SomeTensor]:
        """Return the parameters of a layer and of the layers inside it, by their ids."""
        return _parameters(args[0]) if self.layer else {}


def _parameters(layer: tf.keras.layers.Layer) -> dict[int, SomeTensor]:
    found = {id(value): value for value in vars(layer).values() if eligible_dtype(value)}
    for inner in vars(layer).get("_layers", ()):
        found.update(_parameters(inner))
    return found


def _rounded(tensor: SomeTensor, dtype: int) -> SomeTensor:
    return cast(cast(tensor, dtype), FLOAT32)


def _makes_numbers(operator: Composite) -> bool:
    return not operator.layer and vocabulary()[operator.op].group in ("creation", "random")


def _named(
    operator: Composite, args: Sequence[Value], kwargs: Keywords
) -> tf.DType | str | type | None:
    """Return the dtype that a caller names for the result.

    A draw from tensors must be told their dtype, so a dtype given by position names no other.
    """
    drawn = vocabulary()[operator.op].group == "random"
    return kwargs.get("dtype") if drawn else operator.argument("dtype", args, kwargs)


class _Performer(Performer[Plan, Composite]):
    def perform(
        self, plan: Plan, operator: Composite, args: Sequence[Value], kwargs: Keywords
    ) -> Value:
        op = operator.op
        if plan.follows_parts(op) and not dispatches(args, kwargs):
            return _call(plan.for_parts_with_rules(op), operator, args, kwargs)
        if (
            operator.layer
            and plan.policy.active
            and plan.rule(op) is Rule.LOW
            and states_float32(args[0])
        ):
            amp_warnings.follows_the_region(
                "tensorflow", type(args[0]).__name__, args[0].name, NAMES[plan.low]
            )
        return super().perform(plan, operator, args, kwargs)

    def is_left_alone(
        self,
        plan: Plan,
        operator: Composite,
        op: str | None,
        args: Sequence[Value],
        kwargs: Keywords,
    ) -> bool:
        return dispatches(args, kwargs)

    def is_native(self, operator: Composite, dtype: int, args: Sequence[Value]) -> bool:
        return not operator.activation_only and not always_emulated(operator.op)

    def named_dtype(self, operator: Composite, args: Sequence[Value], kwargs: Keywords) -> None:
        # None, so that the rule casts the inputs; `call` casts the result to the named dtype.
        return None

    def target(
        self, plan: Plan, operator: Composite, rule: Rule, seen: list[int], mixed: bool
    ) -> int | None:
        # Low inputs need no emulation here: the operation types inside emulate where they must.
        return None if rule is Rule.UNTOUCHED else super().target(plan, operator, rule, seen, mixed)

    def carry_out_rule(
        self, plan: Plan, operator: Composite, rule: Rule, args: Sequence[Value], kwargs: Keywords
    ) -> Outcome:
        result, dtype, emulated = super().carry_out_rule(plan, operator, rule, args, kwargs)
        named = _named(operator, args, kwargs) if emulated else None
        return (
            result if named is None else convert(cast, tf.as_dtype(named).as_datatype_enum, result),
            dtype,
            emulated,
        )

    def call(
        self,
        plan: Plan,
        operator: Composite,
        args: Sequence[Value],
        kwargs: Keywords,
        parts: Parts = AS_IT_IS,
    ) -> Value:
        op, dtype = operator.op, parts.dtype
        computed = FLOAT32 if dtype is None or parts.to is _rounded else dtype
        named = _named(operator, args, kwargs)
        if not operator.layer and (plan.rule(op) is Rule.UNTOUCHED or _makes_numbers(operator)):
            args, kwargs = in_stated_dtype(
                operator.call, args, kwargs, 0 if dtype is None else computed
            )
        if dtype is None:  # the activation inside a layer still follows its own rule
            of_layer = op in keras_facts().parts and plan.rule(op) is not Rule.UNTOUCHED
        else:
            of_layer = bool(parts.parameters) or (parts.to is _rounded and operator.layer)
        inner = plan.for_parts_of_layer(op, computed) if of_layer else plan.for_parts
        if computed == FLOAT32:
            result = _call(inner, operator, args, kwargs)
            to = FLOAT32 if plan.rule(op) is Rule.FP32 else 0
        else:
            result = _call_low(inner, operator, args, kwargs, parts)
            # A layer with an activation returns that operation's result, in its dtype.
            to = dtype if op not in keras_facts().parts else 0
        if named is not None:  # an explicit cast
            to = tf.as_dtype(named).as_datatype_enum
        return convert(cast, to, result) if to in ELIGIBLE and dtype is not None else result

    def call_without_floats(
        self, plan: Plan, operator: Composite, rule: Rule, args: Sequence[Value], kwargs: Keywords
    ) -> Value:
        # Operations that make numbers keep their meaning. Keras's symbolic tensors have no dtype of
        # TensorFlow's: a function of those alone keeps the plan.
        stated = not operator.layer and (
            _has_numbers(args, kwargs) or operator.argument("dtype", args, kwargs) is not None
        )
        no_rules = rule is Rule.UNTOUCHED or stated or _makes_numbers(operator)
        return _call(plan.for_parts if no_rules else plan, operator, args, kwargs)

    def report(
        self,
        plan: Plan,
        op: str,
        operator: Composite,
        rule: Rule,
        run: Callable[[], Outcome],
        args: Sequence[Value],
        kwargs: Keywords,
    ) -> Value:
        given = list(tensors([args, kwargs]))
        if not given and op != "embedding":
            return run()[0]
        given = (
            given[:1] if operator.activation_only else [*given, *operator.parameters(args).values()]
        )
        layer, path = (
            (args[0], layer_path(args[0], operator.name))
            if operator.layer
            else (None, operator.name)
        )
        state = observing.State(layer if traces.shadow is not None else None)
        written = before(op, operator.name, args, kwargs, layer=operator.layer)
        with unreported(thread) as observer:
            result, target, emulated = run()
        if not plan.policy.active and layer is not None and layer.compute_dtype == "float32":
            target = FLOAT32  # a float32 norm widens low inputs itself

        def low(dtype: int) -> Value:
            state.check()
            return self.carry_out_rule(
                plan.low_alone(NAMES[dtype]), operator, Rule.LOW, args, kwargs
            )[0]

        values = (*args, *kwargs.values())
        return observing.report(
            observer, op, path, rule, given, values, target or 0, emulated, result, low, written
        )


_performer = _Performer(
    thread,
    Nesting(tensors, eligible_dtypes, convert),
    Casts(cast, _rounded, lambda result, dtype: convert(cast, dtype, result)),
    ELIGIBLE,
    FLOAT32,
)


def _call(
    plan: Plan | None, composite: Composite, args: Sequence[Value], kwargs: Keywords
) -> Value:
    """Call the original with a plan in force for its parts."""
    before, thread.plan = thread.plan, plan
    try:
        return composite.call(*args, **kwargs)
    finally:
        thread.plan = before


def _call_low(
    plan: Plan | None, composite: Composite, args: Sequence[Value], kwargs: Keywords, parts: Parts
) -> Value:
    """Call the original with a layer's parameters cast once, also if its code uses one twice."""
    if not parts.parameters:
        return _call(plan, composite, args, kwargs)
    casts = {key: (value, parts.to(value, parts.dtype)) for key, value in parts.parameters.items()}
    before, thread.parameters = thread.parameters, casts
    try:
        return _call(plan, composite, args, kwargs)
    finally:
        thread.parameters = before


def _has_numbers(args: Sequence[Value], kwargs: Keywords) -> bool:
    """Return whether an operation has inputs with a dtype: its parts follow no rule then."""
    inputs = nest.flatten([args, kwargs])
    return any(isinstance(getattr(each, "dtype", None), (tf.DType, np.dtype)) for each in inputs)
