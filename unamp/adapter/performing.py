"""Carrying out the rule for one call, whatever the framework.

`target` is for every adapter. `Operator` and `Performer` are for those that replace a framework's
functions and cast in Python, call by call. A device may have no kernels for a low dtype. There, low
operations are *emulated*: inputs are rounded to low, the framework computes in float32, and the
result is rounded to low.
"""

from __future__ import annotations

import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

from unamp._function_types import Args, Function, Keywords
from unamp.adapter.arguments import Nesting
from unamp.adapter.float8 import Arithmetic, dequantized, format_of, with_factors
from unamp.adapter.framework_types import Cast, Dtype, Tensor
from unamp.adapter.observing import traced
from unamp.adapter.plans import ban_message
from unamp.adapter.shadowing import IN_PLACE, NAMED, LeftOut
from unamp.adapter.state import Plan, ThreadState
from unamp.dtypes import FLOAT8
from unamp.errors import BannedOperation
from unamp.policy import Policy, Rule
from unamp.vocabulary import vocabulary

#: The argument by which a caller names the result's dtype, in every framework.
_DTYPE = "dtype"

#: The result of a call, the dtype that was computed in, and whether that was emulated.
Outcome = tuple[Any, Dtype, bool]


def target(rule: Rule, low: Dtype, float32: Dtype, seen: list[Dtype], mixed: bool) -> Dtype:
    """Return the dtype that a rule casts eligible inputs to; None to leave everything as it is.

    Args:
        rule: the rule.
        low: the policy's dtype.
        float32: the framework's float32.
        seen: the dtypes of the eligible inputs, at least one.
        mixed: whether they differ.
    """
    if rule is Rule.LOW:
        return low
    if rule is Rule.FP32:
        return float32
    if mixed:
        return differing(rule, float32, seen)
    # Inputs that agree stay as they are; a low dtype is named, since the device may emulate it.
    return None if seen[0] is float32 else seen[0]


def differing(rule: Rule, float32: Dtype, seen: Sequence[Dtype]) -> Dtype:
    """Return the dtype that a rule casts differing inputs to; None to leave them as they are."""
    if rule is Rule.NARROWEST:
        low = [dtype for dtype in seen if dtype != float32]
        # neither low dtype holds the other's numbers
        return low[0] if low.count(low[0]) == len(low) else float32
    return float32 if rule is Rule.WIDEST else None


def places(function: Function) -> Mapping[str, int]:
    """Return the places of a function's parameters among the positional arguments.

    Empty where Python cannot tell. A keyword-only parameter has a place that no positional argument
    reaches.
    """
    by_code = _places_by_code(function)
    return _places_by_signature(function) if by_code is None else by_code


def _places_by_code(function: Function) -> Mapping[str, int] | None:
    code = getattr(function, "__code__", None)
    if code is None or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        return None
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return {name: place for place, name in enumerate(names)}


def _places_by_signature(function: Function) -> Mapping[str, int]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {
        each.name: sys.maxsize if each.kind is each.KEYWORD_ONLY else place
        for place, each in enumerate(parameters)
    }


class _Everything:
    def __contains__(self, name: object) -> bool:
        return True


#: A container with every name in it.
EVERYTHING: Container[str] = _Everything()


class CallPlan(Plan, Protocol):
    """A plan whose rules are carried out call by call."""

    @property
    def low(self) -> Dtype:
        """The policy's dtype, as the framework's object."""

    def low_alone(self, dtype: str, /) -> Self:
        """Return a plan under which everything is computed low, whatever this one says."""


class LayerPlan:
    """The plan inside a layer that is one operation, where no rule applies.

    An adapter derives its own, which casts the parameters where they are used. The layer itself is
    not changed: other threads may be using it.
    """

    policy = Policy(enabled=False)
    changes_float32 = EVERYTHING

    def rule(self, op: str, /) -> Rule:
        """Return the rule in force for any operation: none."""
        return Rule.UNTOUCHED

    def low_alone(self, dtype: str, /) -> Self:
        """Return the same plan: nothing in a layer is computed low by itself."""
        return self


class Operator(ABC):
    """An operation as the framework's code calls it, and what a rule needs to know about it.

    Attributes:
        op: the vocabulary's name; None for a function that the vocabulary does not have.
        name: the framework's own name of the function or layer.
        call: the original function.
        layer: whether its parameters are not among its arguments: a layer's ``forward``. Its rule
            casts them where an argument is eligible; an embedding's always does, since its
            arguments are whole numbers.
        bound: whether its first argument is no input: a primitive, or a layer.
        in_place: whether it changes its first argument.
        out_of_place: for one in place, the function that returns the result as a new tensor.
        which: returns the operation for some arguments, where one function does several; None where
            no rule applies.
        activation_only: whether a rule casts the first tensor alone (norms, whose parameters and
            statistics stay float32).
        view: whether it returns a view of its input, or only moves data, natively in any dtype.
    """

    # Not a dataclass: Paddle's SOT sees the fields of one, and not those that subclasses add.
    __slots__ = (
        "_places",
        "activation_only",
        "bound",
        "call",
        "in_place",
        "layer",
        "name",
        "op",
        "out_of_place",
        "view",
        "which",
    )

    def __init__(
        self,
        op: str | None,
        name: str,
        call: Function,
        *,
        layer: bool = False,
        bound: bool = False,
        in_place: bool = False,
        out_of_place: Function | None = None,
        view: bool = False,
        which: Callable[[Args, Keywords], str | None] | None = None,
    ) -> None:
        self.op = op
        self.name = name
        self.call = call
        self.layer = layer
        self.bound = bound
        self.in_place = in_place
        self.out_of_place = out_of_place
        self.view = view
        self.which = which
        self.activation_only = op is not None and vocabulary()[op].group == "norm"
        # read now: while a region is open, the function has other code
        self._places = _places_by_code(call)

    @property
    def places(self) -> Mapping[str, int]:
        """The places of its parameters among the positional arguments."""
        if self._places is None:
            # not in `__init__`: a signature takes as long as all the rest of an operator
            self._places = _places_by_signature(self.call)
        return self._places

    def argument(self, name: str, args: Args, kwargs: Keywords) -> Any:
        """Return an argument of a call, given by position or by name; None where there is none."""
        place = self.places.get(name)
        return args[place] if place is not None and place < len(args) else kwargs.get(name)

    @abstractmethod
    def parameters(self, args: Args) -> Mapping[int, Tensor]:
        """Return the parameters that are not among the arguments, by their ids."""


class Casts(NamedTuple):
    """An adapter's casts.

    All but `mapped` take one tensor and a dtype, and leave tensors alone that are not eligible.

    Attributes:
        cast: returns the tensor in the dtype.
        rounded: returns the tensor's values rounded to a low dtype, in float32.
        mapped: returns a result with its tensors in a dtype: a tensor, or tuples and lists of them.
    """

    cast: Cast
    rounded: Cast
    mapped: Callable[[object, Dtype], object]


class Parts(NamedTuple):
    """The cast for operations that the code of one operation calls.

    Attributes:
        parameters: the parameters that are not among the arguments, by their ids. A norm's are left
            out: they stay as they are.
        to: the cast that the arguments have had, and that the parameters get when they are used.
        dtype: the dtype of that cast; None where nothing is cast.
    """

    parameters: Mapping[int, Tensor]
    to: Cast
    dtype: Dtype


AS_IT_IS = Parts({}, lambda tensor, dtype: tensor, None)

PlanT = TypeVar("PlanT", bound=CallPlan)
OperatorT = TypeVar("OperatorT", bound=Operator)
ResultT = TypeVar("ResultT")


class Performer(ABC, Generic[PlanT, OperatorT]):
    """The way in which rules are carried out, one call at a time.

    A subclass says what its framework does in its own way.

    Args:
        thread: the adapter's state of the calling thread.
        nesting: finds and converts tensors in arguments.
        casts: the adapter's casts.
        dtypes: the eligible dtypes, as the framework's objects.
        float32: the one of them that is float32.
    """

    #: The class of objects by which a caller names a dtype.
    dtype_kind: ClassVar[type]
    #: The adapter's function that runs a call and reports it: it takes the arguments of `report`
    #: without the plan, and a function that computes the call in a low dtype, given its name.
    reporting: ClassVar[Function]

    #: The operations that emulate float8; None where the adapter computes no product from it.
    arithmetic: ClassVar[Arithmetic | None] = None

    def __init__(
        self,
        thread: ThreadState[PlanT],
        nesting: Nesting,
        casts: Casts,
        dtypes: Container[Dtype],
        float32: Dtype,
    ) -> None:
        self._thread = thread
        self._floats = nesting.floats
        self._convert = nesting.convert
        self._casts = casts
        self._dtypes = dtypes
        self._float32 = float32

    def is_left_alone(
        self,
        plan: PlanT,
        operator: OperatorT,
        op: str | None,
        args: Args,
        kwargs: Keywords,
    ) -> bool:
        """Return whether a call runs as it is: no rule applies, or other code carries it out."""
        return False

    @abstractmethod
    def is_native(self, operator: OperatorT, dtype: Dtype, args: Args) -> bool:
        """Return whether the framework computes an operation low by itself, given low inputs."""

    @abstractmethod
    def call(
        self,
        plan: PlanT,
        operator: OperatorT,
        args: Args,
        kwargs: Keywords,
        parts: Parts = AS_IT_IS,
    ) -> object:
        """Call the original with arguments that are cast already.

        Operations that the original calls compute in the same dtype.
        """

    def call_without_floats(
        self, plan: PlanT, operator: OperatorT, rule: Rule, args: Args, kwargs: Keywords
    ) -> object:
        """Call the original with arguments that no rule casts."""
        return self.call(plan, operator, args, kwargs)

    def call_in_place(
        self,
        plan: PlanT,
        operator: OperatorT,
        seen: Sequence[Dtype],
        args: Args,
        kwargs: Keywords,
    ) -> Outcome:
        """Call an in-place operation: no rule changes it, but it must work on a low tensor."""
        raise NotImplementedError  # for frameworks without in-place operations

    def activation(self, kwargs: Keywords) -> str | None:
        """Return the name of the argument that is a norm's activation, where it was named."""
        return next((name for name, value in kwargs.items() if self._floats(value)), None)

    def report(
        self,
        plan: PlanT,
        op: str,
        operator: OperatorT,
        rule: Rule,
        run: Callable[[], Outcome],
        args: Args,
        kwargs: Keywords,
    ) -> object:
        """Return the result of `run`, and report the call to `unamp.trace`."""

        def low(dtype: str) -> object:
            if dtype in FLOAT8:
                return self.compute_from_float8(plan, op, operator, dtype, args, kwargs)
            return self.compute_low(plan.low_alone(dtype), operator, args, kwargs)

        return self.reporting(op, operator, rule, run, args, kwargs, low)

    def rule(self, plan: PlanT, operator: OperatorT, op: str, args: Args, kwargs: Keywords) -> Rule:
        """Return the rule for a call: the plan's, unless the call itself states another."""
        return plan.rule(op)

    def target(
        self, plan: PlanT, operator: OperatorT, rule: Rule, seen: list[Dtype], mixed: bool
    ) -> Dtype | None:
        """Return the dtype that a rule casts eligible inputs to; None to leave them as they are."""
        return target(rule, plan.low, self._float32, seen, mixed)

    def lowered(self, operator: OperatorT, result: object, dtype: Dtype) -> object:
        """Return the float32 result of an emulated operation, rounded to low."""
        return self._casts.mapped(result, dtype)

    def copied(self, tensor: Tensor, dtype: Dtype) -> Tensor:
        """Return a copy of a tensor, in its own dtype, which can be changed by itself."""
        return tensor  # for frameworks whose tensors do not change

    def widened(self, tensor: Tensor) -> Tensor:
        """Return a float32 copy of a low tensor that has no gradient."""
        return self._casts.cast(tensor, self._float32)

    def write(self, tensor: Tensor, values: Tensor) -> None:
        """Give a tensor that has no gradient the values of another, in its own dtype."""
        raise NotImplementedError  # for frameworks whose tensors do not change

    def updating(
        self,
        tensors: Sequence[object],
        run: Callable[[Args, Keywords], ResultT],
        args: Args,
        kwargs: Keywords,
    ) -> ResultT:
        """Return the result of a call on float32 copies of low tensors; write the copies back.

        Without the copies, low running statistics would lose their update: it would go to a cast of
        them, or to a copy that the framework makes.

        Args:
            tensors: the tensors that the call changes; those that are not low are left alone.
            run: runs the call with other arguments.
        """
        low = [
            each
            for each in tensors
            if any(dtype is not self._float32 for dtype in self._floats((each,)))
        ]
        if not low:
            return run(args, kwargs)
        wide = {id(each): self.widened(each) for each in low}
        args, kwargs = self.converted(
            lambda tensor, _: wide.get(id(tensor), tensor), None, args, kwargs
        )
        result = run(args, kwargs)
        for own in low:
            self.write(own, wide[id(own)])
        return result

    def compute_low(self, plan: PlanT, operator: OperatorT, args: Args, kwargs: Keywords) -> object:
        """Return the result of a call computed low, from copies; see `unamp.adapter.shadowing`.

        Raises:
            LeftOut: where the call changes its arguments, or its caller named the dtype.
        """
        if operator.in_place or kwargs.get("out") is not None:
            raise LeftOut(IN_PLACE)
        if self.named_dtype(operator, args, kwargs) is not None:
            raise LeftOut(NAMED)
        args, kwargs = self.converted(self.copied, None, args, kwargs)
        return self.carry_out_rule(plan, operator, Rule.LOW, args, kwargs)[0]

    def compute_from_float8(
        self,
        plan: PlanT,
        op: str,
        operator: OperatorT,
        dtype: str,
        args: Args,
        kwargs: Keywords,
    ) -> object:
        """Return the result of a product in float32, from factors rounded to float8.

        See `unamp.adapter.shadowing`.

        Raises:
            LeftOut: where the adapter does not compute the product from float8.
        """
        form, by_rows = format_of(dtype)
        arithmetic = self.arithmetic
        if arithmetic is None or by_rows:
            raise LeftOut(f"this framework's adapter computes no product from {dtype}")
        if operator.in_place or kwargs.get("out") is not None:
            raise LeftOut(IN_PLACE)

        def held(tensor: Tensor) -> Tensor:
            return dequantized(self._casts.cast(tensor, self._float32), form, None, arithmetic)

        if not operator.layer:
            bound = 1 if operator.bound else 0
            # Factors given by name come in any order, which matters where a third tensor is added.
            named = (
                []
                if "add" in op
                else [k for k, v in kwargs.items() if k != "bias" and hasattr(v, "shape")]
            )
            given = [*args[bound:], *(kwargs[k] for k in named)]
            changed = with_factors(op, given, lambda n, tensor: held(tensor))
            count = len(args) - bound
            kwargs = {**kwargs, **dict(zip(named, changed[count:], strict=True))}
            return self.call(plan, operator, [*args[:bound], *changed[:count]], kwargs)
        own = operator.parameters(args)
        # a bias has one dimension
        ready = {n: held(tensor) for n, tensor in own.items() if len(tensor.shape) > 1}
        parts = Parts(own, lambda tensor, dtype: ready.get(id(tensor), tensor), self._float32)
        args, kwargs = self.converted(lambda tensor, dtype: held(tensor), None, args, kwargs)
        return self.call(plan, operator, args, kwargs, parts)

    def perform(self, plan: PlanT, operator: OperatorT, args: Args, kwargs: Keywords) -> object:
        """Return the result of a call under its rule; report it where the thread is traced.

        Raises:
            BannedOperation: where the rule bans it.
        """
        op = operator.op if operator.which is None else operator.which(args, kwargs)
        if self.is_left_alone(plan, operator, op, args, kwargs):
            return operator.call(*args, **kwargs)
        if op is None:  # no rule applies, but the call must work on a low tensor
            return self.carry_out_rule(plan, operator, Rule.UNTOUCHED, args, kwargs)[0]
        rule = self.rule(plan, operator, op, args, kwargs)
        if self._thread.sink is not None and traced(op):
            return self.report(
                plan,
                op,
                operator,
                rule,
                lambda: self._apply(plan, operator, op, rule, args, kwargs),
                args,
                kwargs,
            )
        return self._apply(plan, operator, op, rule, args, kwargs)[0]

    def _apply(
        self,
        plan: PlanT,
        operator: OperatorT,
        op: str,
        rule: Rule,
        args: Args,
        kwargs: Keywords,
    ) -> Outcome:
        if rule is Rule.BANNED:
            if self.seen(operator, args, kwargs)[0]:
                raise BannedOperation(ban_message(plan.policy, op))
            rule = Rule.UNTOUCHED
        result, dtype, emulated = self.carry_out_rule(plan, operator, rule, args, kwargs)
        if rule is Rule.LOW and plan.policy.widen_results:
            result = self._casts.mapped(result, self._float32)
        return result, dtype, emulated

    def carry_out_rule(
        self, plan: PlanT, operator: OperatorT, rule: Rule, args: Args, kwargs: Keywords
    ) -> Outcome:
        """Call an operation with its inputs cast as a rule says, which is no ban.

        A subclass may carry out another rule in its place.
        """
        float32, casts = self._float32, self._casts
        seen, own = self.seen(operator, args, kwargs)
        if not seen or kwargs.get("out") is not None:
            return (
                self.call_without_floats(plan, operator, rule, args, kwargs),
                seen[0] if seen else None,
                False,
            )
        if operator.in_place:
            return self.call_in_place(plan, operator, seen, args, kwargs)
        if (
            operator.activation_only
            and rule is not Rule.FP32
            and (rule is not Rule.WIDEST or seen[0] is not float32)
        ):
            seen = seen[:1]  # beside a float32 activation low parameters are widened
        mixed = seen.count(seen[0]) != len(seen)
        dtype = self.target(plan, operator, rule, seen, mixed)
        named = None if dtype is None else self.named_dtype(operator, args, kwargs)
        if named is not None and rule is not Rule.UNTOUCHED:
            # an explicit cast, which no rule changes; low inputs may still have to be emulated
            dtype = None if float32 in seen else seen[0]
        if dtype is None:
            return self.call(plan, operator, args, kwargs), seen[0], False
        if dtype is float32:
            args, kwargs = self.converted(casts.cast, float32, args, kwargs)
            return (
                self.call(plan, operator, args, kwargs, Parts(own, casts.cast, float32)),
                float32,
                False,
            )
        if operator.activation_only:
            own = {}
        if self.is_native(operator, dtype, args):
            if mixed or seen[0] is not dtype:
                args, kwargs = self._converted_to_low(operator, casts.cast, dtype, args, kwargs)
            return (
                self.call(plan, operator, args, kwargs, Parts(own, casts.cast, dtype)),
                dtype,
                False,
            )
        args, kwargs = self._converted_to_low(operator, casts.rounded, dtype, args, kwargs)
        parts = Parts(own, casts.rounded, dtype)
        if named is not None:
            return self._as_named(plan, operator, parts, args, kwargs, named), dtype, True
        result = self.call(plan, operator, args, kwargs, parts)
        if operator.activation_only and isinstance(result, tuple):
            # the statistics stay as they are
            return (self.lowered(operator, result[0], dtype), *result[1:]), dtype, True
        return self.lowered(operator, result, dtype), dtype, True

    def seen(
        self, operator: OperatorT, args: Args, kwargs: Keywords
    ) -> tuple[list[Dtype], Mapping[int, Tensor]]:
        """Return the dtypes of the tensors that a rule is about, and the parameters among them."""
        seen = self._floats((args, kwargs) if kwargs else args)
        if not operator.layer or not (seen or operator.op == "embedding"):
            return seen, {}
        own = operator.parameters(args)
        return [*seen, *self._floats(own)], own

    def converted(
        self, to: Cast, dtype: Dtype | None, args: Args, kwargs: Keywords
    ) -> tuple[Args, Keywords]:
        """Return arguments with their tensors cast."""
        convert = self._convert
        return [convert(to, dtype, value) for value in args], {
            k: convert(to, dtype, value) for k, value in kwargs.items()
        }

    def _converted_to_low(
        self,
        operator: OperatorT,
        to: Cast,
        dtype: Dtype,
        args: Args,
        kwargs: Keywords,
    ) -> tuple[Args, Keywords]:
        if not operator.activation_only:
            return self.converted(to, dtype, args, kwargs)
        convert, first = self._convert, 1 if operator.bound else 0
        if len(args) > first:
            rest, kwargs = self.converted(
                self._casts.cast, self._float32, args[first + 1 :], kwargs
            )
            return [*args[:first], convert(to, dtype, args[first]), *rest], kwargs
        name = self.activation(kwargs)
        others = {key: value for key, value in kwargs.items() if key != name}
        _, others = self.converted(self._casts.cast, self._float32, (), others)
        return args, others if name is None else {**others, name: convert(to, dtype, kwargs[name])}

    def _as_named(
        self,
        plan: PlanT,
        operator: OperatorT,
        parts: Parts,
        args: Args,
        kwargs: Keywords,
        named: object,
    ) -> object:
        """Return the result of an emulated operation in the dtype that the caller named."""
        asked = self.dtype_meant(named)
        if asked not in self._dtypes:  # not eligible: the framework itself casts the result
            return self.call(plan, operator, args, kwargs, parts)
        args = [self._float32 if self.dtype_meant(value) == asked else value for value in args]
        if _DTYPE in kwargs:
            kwargs = {**kwargs, _DTYPE: self._float32}
        return self._casts.mapped(self.call(plan, operator, args, kwargs, parts), asked)

    def named_dtype(self, operator: OperatorT, args: Args, kwargs: Keywords) -> object:
        """Return the dtype that the caller named for the result; None without one.

        That is an explicit cast, which no rule changes.
        """
        named = operator.argument(_DTYPE, args, kwargs)
        if named is not None:
            return named
        # The place of a C function's dtype is not known, but a dtype is found among its arguments.
        return next((value for value in args if self.dtype_meant(value) is not None), None)

    def dtype_meant(self, value: object) -> Dtype | None:
        """Return the framework's dtype that an argument stands for; None for any other argument."""
        return value if isinstance(value, self.dtype_kind) else None
