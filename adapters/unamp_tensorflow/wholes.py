"""Functions and layers of Python code that are one operation of the vocabulary, though they compute with several.

`tf.nn.gelu` computes with `Erf` and `Mul`, a Keras `Dense` with a product and a sum: their own rule holds for all that is
inside. What comes to one operation type of the same name (`tf.exp`) needs nothing here; the rule meets it there.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
from tensorflow.python.eager import context
from tensorflow.python.framework import dtypes
from tensorflow.python.util import nest

from unamp.adapter.observing import traced
from unamp.adapter.replacing import AttributePatch, CodePatch
from unamp.errors import BannedOperation
from unamp.policy import Rule
from unamp.vocabulary import vocabulary
from unamp_tensorflow import observing
from unamp_tensorflow.casting import EagerTensor, Variable, cast, convert, execute, kind, kinds, tensors
from unamp_tensorflow.facts import facts
from unamp_tensorflow.listing import emulated
from unamp_tensorflow.spellings import keras_in_use, named
from unamp_tensorflow.state import ELIGIBLE, FLOAT32, thread

__all__ = ["Whole", "functions", "keras"]


class Whole:
    """One function or layer.

    Attributes:
        op: the vocabulary's name.
        path: TensorFlow's name for it, as the vocabulary spells it.
        layers: for a method of layers: each class, and the operation that it is.
        change: what puts it in and takes it out.
    """

    __slots__ = ("call", "layers", "op", "patch", "path")

    def __init__(self, op: str, path: str, layers: Mapping[type, str] | None = None) -> None:
        self.op = op
        self.path = path
        self.layers = layers
        self.call: Callable[..., Any] = inspect.signature  # until the original is known
        self.patch: CodePatch | AttributePatch | None = None

    def which(self, args: tuple[Any, ...]) -> str:
        """The operation that a call is."""
        if self.layers is None:
            return self.op
        layers = self.layers
        return next((layers[of] for of in type(args[0]).__mro__ if of in layers), self.op)

    def wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same as `replacement`, for a method whose signature somebody reads."""
        return functools.wraps(original)(self.replacement(original))

    def replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """What is called in place of the original while this is in."""
        self.call = original
        # A layer has parameters besides its arguments.
        plain_op = self.op if self.layers is None else ""

        def enter(*args: Any, **kwargs: Any) -> Any:
            plan = thread.plan
            if plan is None or plan.quiet:
                return original(*args, **kwargs)
            target = plan.plainly.get(plain_op)
            if target is not None and not kwargs and thread.sink is None and thread.parameters is None:
                given = _cast_eagerly(args, target)
                if given is not None:
                    return convert(cast, target, _under(plan.inside_function, self, given, kwargs))
            return _perform(self, plan, args, kwargs)

        return enter


def _cast_eagerly(args: tuple[Any, ...], target: int) -> tuple[Any, ...] | None:
    """Most calls: nothing but eager tensors and variables, all of them eligible. None where it is not that simple."""
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


def _perform(whole: Whole, plan: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    op = whole.which(args)
    if plan.passes_through(op):
        return whole.call(*args, **kwargs)
    rule = plan.rule(op)
    if thread.sink is not None and traced(op):
        given = list(tensors([args, kwargs]))
        if given:
            given = given[:1] if _activation_only(op) else given + ([] if whole.layers is None else _parameters(args[0]))
            run = lambda: _carried_out(whole, op, rule, plan, args, kwargs)  # noqa: E731 - reads better at its use
            return observing.report_whole(op, whole.path, rule, run, given)[0]
    return _carried_out(whole, op, rule, plan, args, kwargs)[0]


def _carried_out(whole: Whole, op: str, rule: Rule, plan: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result, the dtype that was computed in, and whether that was emulated."""
    found = kinds([args, kwargs])
    own = [] if whole.layers is None else _parameters(args[0])
    if found and not _activation_only(op):
        found = [*found, *map(kind, own)]
    elif own and op == "embedding":  # its input is whole numbers
        found = [*map(kind, own)]
    if rule is Rule.BANNED:
        if found:
            raise BannedOperation(f"{op} is banned by the policy in force. {plan.advice(op)}".rstrip())
        rule = Rule.UNTOUCHED
    if not found:  # what makes numbers keeps its meaning; and symbols of Keras have no numbers yet
        done = rule is Rule.UNTOUCHED or (whole.layers is None and _has_numbers(args, kwargs))
        inside = plan.inside_function if done else plan
        return _under(inside, whole, args, kwargs), 0, False
    if _activation_only(op):
        found = found[:1]
    target = _target(rule, plan.low, found)
    if not target:
        # All is float32, or the framework's own affair; but a layer's activation still has a rule of its own.
        inside = plan.inside_layer(op, FLOAT32) if op in facts().parts and rule is Rule.WIDEST else plan.inside_function
        return _under(inside, whole, args, kwargs), found[0], False
    if target == FLOAT32:
        inside = plan.inside_layer(op, target) if own else plan.inside_function
        result = _under(inside, whole, *_converted(FLOAT32, args, kwargs))
        return (convert(cast, FLOAT32, result) if rule is Rule.FP32 and _open(kwargs) else result), FLOAT32, False
    roundly = _activation_only(op) or emulated(op)
    if roundly:
        result = _emulated(whole, plan, op, target, args, kwargs)
    elif own:
        result = _under_low(plan.inside_layer(op, target), whole, own, target, *_converted(target, args, kwargs))
    else:
        result = _under(plan.inside_function, whole, *_converted(target, args, kwargs))
    if _open(kwargs) and not roundly and op not in facts().parts:  # there an activation's result comes last
        result = convert(cast, target, result)
    if rule is Rule.LOW and plan.policy.widen_results:
        result = convert(cast, FLOAT32, result)
    return result, target, roundly


def _has_numbers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an operation has inputs, of dtypes that no rule casts: then none of what it is made of has a rule either."""
    inputs = nest.flatten([args, kwargs])
    return any(isinstance(getattr(each, "dtype", None), (dtypes.DType, np.dtype)) for each in inputs)


def _target(rule: Rule, low: int, found: list[int]) -> int:
    """The dtype that a rule casts to; 0 to leave everything as it is."""
    if rule is Rule.LOW:
        return low
    if rule is Rule.FP32:
        return FLOAT32
    mixed = len(set(found)) > 1
    if rule is Rule.WIDEST:
        return FLOAT32 if mixed else 0 if found[0] == FLOAT32 else found[0]
    return 0


def _emulated(whole: Whole, plan: Any, op: str, target: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Inputs rounded to low, computed in float32, the result rounded to low; of a norm the activation alone is rounded."""
    first = next(tensors([args, kwargs])) if _activation_only(op) else None

    def to(tensor: Any, dtype: int) -> Any:
        return cast(cast(tensor, target), dtype) if first is None or tensor is first else cast(tensor, dtype)

    inside = plan.inside_function if whole.layers is None else plan.inside_layer(op, FLOAT32)
    result = _under(inside, whole, convert(to, FLOAT32, args), convert(to, FLOAT32, kwargs))
    if first is not None and isinstance(result, (tuple, list)):  # the statistics stay as they are
        return type(result)([cast(result[0], target), *result[1:]])
    return convert(cast, target, result)


def _parameters(layer: Any) -> list[Any]:
    """A layer's parameters, with those of the layers that it is made of."""
    mine = [value for value in vars(layer).values() if kind(value)]
    return mine + [value for inner in vars(layer).get("_layers", ()) for value in _parameters(inner)]


def _under_low(plan: Any, whole: Whole, own: list[Any], target: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The original, with the layer's parameters cast once, however often its code uses them."""
    before = thread.parameters
    thread.parameters = {id(value): (value, cast(value, target)) for value in own}
    try:
        return _under(plan, whole, args, kwargs)
    finally:
        thread.parameters = before


def _under(plan: Any, whole: Whole, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    before, thread.plan = thread.plan, plan
    try:
        return whole.call(*args, **kwargs)
    finally:
        thread.plan = before


def _converted(target: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    return convert(cast, target, args), convert(cast, target, kwargs)


def _open(kwargs: dict[str, Any]) -> bool:
    """Whether the caller left the result's dtype open: one that is named is an explicit cast."""
    return kwargs.get("dtype") is None


@cache
def _activation_only(op: str) -> bool:
    return vocabulary()[op].group == "norm"


# --- finding them ------------------------------------------------------------------------------------------------------------


def functions() -> tuple[Whole, ...]:
    """Those of TensorFlow."""
    return _functions(False)


def keras() -> tuple[Whole, ...]:
    """Those of Keras, once it is imported."""
    return (*_functions(True), *_layers()) if keras_in_use() else ()


@cache
def _functions(of_keras: bool) -> tuple[Whole, ...]:
    taken: set[Any] = set()
    made = []
    for op, path in _spelled():
        if path.startswith("keras.") is not of_keras or path in facts().thin:
            continue
        function = named(path)
        if not isinstance(function, types.FunctionType) or function in taken or _generated(function):
            continue
        taken.add(function)
        whole = Whole(op, path)
        whole.patch = CodePatch(function, whole.replacement)
        made.append(whole)
    return tuple(made)


def _spelled() -> Iterator[tuple[str, str]]:
    for op in vocabulary().values():
        if op.group != "cast" and op.name != "control_flow":
            for path in op.spellings.get("tensorflow", ()):
                yield op.name, path


def _generated(function: types.FunctionType) -> bool:
    """Whether a function is the wrapper that TensorFlow generates for an operation type."""
    return function.__module__.rpartition(".")[2].startswith("gen_")


@cache
def _layers() -> tuple[Whole, ...]:
    """The method `call` of Keras's layers; several classes may share one."""
    classes = {
        found: op for op, path in _spelled() if path.startswith("keras.layers.") and isinstance(found := named(path), type)
    }
    made: dict[Any, Whole] = {}
    for layer, op in classes.items():
        home = next((of for of in layer.__mro__ if "call" in vars(of)), None)
        if home is None or home.__module__ == "keras.src.layers.layer" or vars(home)["call"] in made:
            continue
        whole = Whole(op, f"{home.__name__}.call", classes)
        made[vars(home)["call"]] = whole
        whole.patch = AttributePatch(home, "call", whole.wrapped)
    return tuple(made.values())
