"""One call of a composite operation: Python code that is one operation of the vocabulary.

`jax.nn.softmax` is six primitives: its own rule holds for all of them. Its inputs are cast, and it
runs with no policy in force. `unamp.adapter.performing.Performer` carries the rule out; this module
tells it about JAX. A function gets other code while a region is open: so modules that imported it
before, operators of arrays, and `jax.jit` call the replacement, too. Layers are in `layer_calls`.
"""

from __future__ import annotations

import copy
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import lax

from unamp._function_types import Args, Function, Keywords
from unamp.adapter.arguments import Nesting, leaves
from unamp.adapter.forwarding import forwarding
from unamp.adapter.observing import equation
from unamp.adapter.open_traces import traces
from unamp.adapter.performing import AS_IT_IS, Casts, Operator, Outcome, Parts, Performer, places
from unamp.adapter.plans import is_listed
from unamp.adapter.replacing import CodePatch, Replacement, as_replacement
from unamp.adapter.shadowing import NAMED, LeftOut
from unamp.dtypes import FLOAT8
from unamp.policy import Rule
from unamp.vocabulary import vocabulary
from unamp_jax import kept_calls, observing
from unamp_jax.casting import cast, eligible_dtype, eligible_dtypes, mapped
from unamp_jax.facts import facts
from unamp_jax.precision import stated_rule, wide_result
from unamp_jax.shadowing import products_in_float8
from unamp_jax.state import CONTEXT, DTYPES, ELIGIBLE, FLOAT32, Plan, PyTree, thread

if TYPE_CHECKING:
    import jax.numpy as jnp

#: The arguments by which a caller names the dtype of a result, and of a product's result.
_DTYPE, _PREFERRED = "dtype", "preferred_element_type"

#: The argument that is a plain number, and no operand.
_FILL = "fill_value"


class Composite(Operator):
    """One function that is an operation; see `unamp.adapter.performing.Operator`.

    Args:
        op: the operation's canonical name.
        path: JAX's name for it, as the spellings have it.
        function: the function, or an object that is called like one.

    Attributes:
        draws: whether it draws random numbers, which low parameters would bias.
        widens: whether differing operands are widened where no rule reaches them,
            since the operation does not promote.
    """

    __slots__ = ("_ranks", "draws", "widens")

    op: str

    def __init__(self, op: str, path: str, function: Function) -> None:
        super().__init__(op, path, function)
        self._ranks: Mapping[str, str] = facts().ranks.get(op, {})
        self.draws = path.partition("random.")[2] in facts().drawn
        self.widens = path.startswith("lax.")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the composite under the policy in force."""
        plan: Plan | None = CONTEXT.value
        return (
            self.call(*args, **kwargs)
            if plan is None
            else performer.perform(plan, self._of_rank(plan, args), args, kwargs)
        )

    def _of_rank(self, plan: Plan, args: Args) -> Composite:
        """Return a call's operation: that of its rank, unless a list names that of all ranks."""
        if not self._ranks or not args or is_listed(plan.policy, self.op):
            return self
        made = copy.copy(self)
        made.op = self._ranks.get(str(getattr(args[0], "ndim", None)), self.op)
        return made

    def parameters(self, args: Args) -> Mapping[int, object]:
        """Return the parameters that are not among the arguments, by their ids."""
        return {}

    @property
    def path(self) -> str:
        """The name in a trace."""
        return self.name

    def rule(self, plan: Plan, args: Args, kwargs: Keywords) -> Rule:
        """Return the rule for a call."""
        rule = plan.rule(self.op)
        return self.stated_rule(args, kwargs) or rule if rule is Rule.LOW else rule

    def stated_rule(self, args: Args, kwargs: Keywords) -> Rule | None:
        """Return the rule that a product's precision means; None where the caller states none."""
        return (
            stated_rule(self.argument("precision", args, kwargs))
            if "precision" in self.places
            else None
        )

    def named_dtype(self, args: Args, kwargs: Keywords) -> jax.typing.DTypeLike | None:
        """Return the dtype that the caller named; None where there is none.

        It is an explicit cast, which no rule changes. A float32 ``preferred_element_type`` is none:
        it is about the result of low operands alone (`precision`).
        """
        named, preferred = (
            self.argument(_DTYPE, args, kwargs),
            self.argument(_PREFERRED, args, kwargs),
        )
        return preferred if named is None and not wide_result(preferred) else named

    def run(self, plan: Plan, dtype: jnp.dtype | None, args: Args, kwargs: Keywords) -> PyTree:
        """Call the original with inputs cast to a dtype; None: they stay as they are."""
        if self.widens and _FILL not in self.places:
            args, kwargs = _with_numbers_alike(args, kwargs)
        wide = (
            self.argument(_PREFERRED, args, kwargs)
            if self._ranks and dtype not in (None, FLOAT32)
            else None
        )
        if wide is not None:
            # JAX cannot differentiate a convolution of one dtype with a result of another.
            place = self.places[_PREFERRED]
            if place < len(args):
                args = (*args[:place], None, *args[place + 1 :])
            else:
                kwargs = {**kwargs, _PREFERRED: None}
            return lax.convert_element_type(self.call(*args, **kwargs), wide)
        result = self.call(*args, **kwargs)
        return mapped(cast, dtype, result) if self.activation_only and dtype is not None else result

    def run_again(self, plan: Plan, args: Args, kwargs: Keywords) -> PyTree:
        """Return the result of the call computed low a second time."""
        return performer.carry_out_rule(plan, self, Rule.LOW, args, kwargs)[0]

    def run_unchanged(self, args: Args, kwargs: Keywords) -> PyTree:
        """Call the function a second time, as it is and with no policy in force."""
        return self.call(*args, **kwargs)

    def state(self, args: Args) -> list[object]:
        """Return the arrays that a call may replace by others: running statistics, seeds."""
        return []


def _with_numbers_alike(args: Args, kwargs: Keywords) -> tuple[Args, Keywords]:
    """Return the arguments of a `jax.lax` function with plain numbers in its low tensors' dtype.

    `jax.lax` makes a number float32, which agrees with the tensors outside of regions only.
    """
    found = {*eligible_dtypes(args, kwargs)}
    if found == {FLOAT32} or len(found) != 1:
        return args, kwargs
    (dtype,) = found

    def alike(value: object) -> object:
        return lax.convert_element_type(value, dtype) if _is_plain_number(value) else value

    return [alike(value) for value in args], {name: alike(value) for name, value in kwargs.items()}


def _is_plain_number(value: object) -> bool:
    if isinstance(value, jax.Array):
        return value.ndim == 0 and bool(value.weak_type) and bool(value.dtype == FLOAT32)
    return type(value) is float or isinstance(value, np.float32)


class _Performer(Performer[Plan, Composite]):
    def perform(self, plan: Plan, operator: Composite, args: Args, kwargs: Keywords) -> PyTree:
        if plan.follows_parts(operator.op, operator.name):
            return operator.call(*args, **kwargs)
        with CONTEXT(None):  # neither the casts nor the operation's parts follow a rule
            return super().perform(plan, operator, args, kwargs)

    def is_native(self, operator: Composite, dtype: jnp.dtype, args: Args) -> bool:
        if operator.name in facts().emulated["layers"]:
            return False
        return not emulates(operator.op, dtype)

    def named_dtype(self, operator: Composite, args: Args, kwargs: Keywords) -> None:
        return None  # inputs that differ are widened nevertheless: see `carry_out_rule`

    def rule(self, plan: Plan, operator: Composite, op: str, args: Args, kwargs: Keywords) -> Rule:
        return operator.rule(plan, args, kwargs)

    def seen(
        self, operator: Composite, args: Args, kwargs: Keywords
    ) -> tuple[list[jnp.dtype], Mapping[int, object]]:
        # A layer computes with its own parameters: they count beside any arguments.
        own = operator.parameters(args)
        return eligible_dtypes(args, kwargs, own), own

    def target(
        self, plan: Plan, operator: Composite, rule: Rule, seen: list[jnp.dtype], mixed: bool
    ) -> jnp.dtype | None:
        if rule is Rule.UNTOUCHED or not plan.policy.active:
            return None
        # Inputs that agree stay as they are, unless the function has no kernel for their low dtype,
        # or is a layer's norm, which would widen them.
        agreed = rule.leaves_agreeing and not mixed
        if (
            agreed
            and not emulates(operator.op, seen[0])
            and not (operator.layer and operator.activation_only)
        ):
            return None
        return super().target(plan, operator, rule, seen, mixed)

    def lowered(self, operator: Composite, result: PyTree, dtype: jnp.dtype) -> PyTree:
        return mapped(_ending_low, dtype, result)

    def carry_out_rule(
        self, plan: Plan, operator: Composite, rule: Rule, args: Args, kwargs: Keywords
    ) -> Outcome:
        named = operator.named_dtype(args, kwargs)
        if operator.layer and named is not None:
            return self.call(plan, operator, args, kwargs), named, False
        if rule is Rule.UNTOUCHED:  # even so, see `draws` and `widens`
            rule = (
                Rule.FP32
                if operator.draws and named is None
                else Rule.WIDEST
                if operator.widens
                else rule
            )
        elif named is not None:
            rule = Rule.WIDEST  # the named dtype is kept; inputs that differ are widened
        result, dtype, emulated = super().carry_out_rule(plan, operator, rule, args, kwargs)
        return (
            mapped(cast, np.dtype(named), result) if emulated and named is not None else result,
            dtype,
            emulated,
        )

    def call(
        self, plan: Plan, operator: Composite, args: Args, kwargs: Keywords, parts: Parts = AS_IT_IS
    ) -> PyTree:
        sink, thread.sink = thread.sink, None  # an operation's parts are not reported
        try:
            return operator.run(plan, parts.dtype, args, kwargs)
        finally:
            thread.sink = sink

    def report(
        self,
        plan: Plan,
        op: str,
        operator: Composite,
        rule: Rule,
        run: Callable[[], Outcome],
        args: Args,
        kwargs: Keywords,
    ) -> PyTree:
        tensors = [
            leaf
            for leaf in leaves((args, kwargs, operator.parameters(args)))
            if eligible_dtype(leaf) is not None
        ]
        given = [
            jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
            for leaf in tensors[: 1 if operator.activation_only else None]
        ]
        before = operator.state(args) if traces.shadow is not None else []
        kept = kept_calls.before(op, operator, args, kwargs) if given else None
        emulation = traces.float8
        if (
            emulation is not None
            and thread.sink is not None
            and emulation.takes(op, thread.sink.layers.path)
        ):
            with products_in_float8(emulation.dtype):
                result, target, emulated = run()
        else:
            result, target, emulated = run()
        if not given:
            return result

        def low(dtype: str) -> PyTree:
            observing.check_state(before, operator.state(args))
            if dtype in FLOAT8:
                _check_unstated(operator, args, kwargs)
                with products_in_float8(dtype):
                    return operator.run_unchanged(args, kwargs)
            return self.compute_low(plan.low_alone(dtype), operator, args, kwargs)

        written = equation(
            op, [*(getattr(args[0], name, None) for name in _EQUATIONS if args), *args], kwargs
        )
        return observing.report(
            op,
            operator.path,
            rule,
            given,
            target,
            result,
            emulated=emulated,
            written=written,
            low=low,
            kept=kept,
        )

    def compute_low(self, plan: Plan, operator: Composite, args: Args, kwargs: Keywords) -> PyTree:
        _check_unstated(operator, args, kwargs)
        return operator.run_again(plan, args, kwargs)  # arrays do not change: no copies


#: The attributes that hold the equation of a layer: of flax's, of Keras'.
_EQUATIONS = ("einsum_str", "equation")


def _check_unstated(operator: Composite, args: Args, kwargs: Keywords) -> None:
    if (
        operator.named_dtype(args, kwargs) is not None
        or operator.stated_rule(args, kwargs) is not None
    ):
        raise LeftOut(NAMED)


def _rounded(value: object, dtype: jnp.dtype) -> object:
    return cast(cast(value, dtype), FLOAT32)


performer = _Performer(
    thread,
    Nesting(leaves, eligible_dtypes, mapped),
    Casts(cast, _rounded, lambda result, dtype: mapped(cast, dtype, result)),
    ELIGIBLE,
    FLOAT32,
)


def _ending_low(value: object, low: jnp.dtype) -> object:
    """Return a result in a low dtype, also a float64 one.

    Where JAX has float64, a library's constants make results float64.
    """
    if str(getattr(value, "dtype", "")) == "float64":
        return lax.convert_element_type(value, low)
    return cast(value, low)


def emulates(op: str, dtype: object, platform: str | None = None) -> bool:
    """Return whether an operation has no kernel in a low dtype.

    Args:
        platform: JAX's platform; None for its default one.
    """
    emulated = facts().emulated
    if op in emulated["float16_off_gpus"]:
        found = platform or jax.default_backend()
        return dtype is DTYPES["float16"] and found in ("cpu", "tpu")
    return op in emulated["operations"] or vocabulary()[op].group in emulated["groups"]


def drawing(function: types.FunctionType, parameters: Sequence[str]) -> Replacement:
    """Return the maker of a random draw's replacement, which widens low parameters.

    No rule reaches the operations of the draw.

    Args:
        function: the function that draws.
        parameters: the names of the distribution's parameters.
    """
    where = places(function)
    found = {place for name, place in where.items() if name in parameters}
    stated = where.get(_DTYPE, sys.maxsize)

    @as_replacement
    def call(original: Function, /, *args: Any, **kwargs: Any) -> Any:
        if CONTEXT.value is None:
            return original(*args, **kwargs)
        with CONTEXT(None):
            if kwargs.get(_DTYPE) is not None or (stated < len(args) and args[stated] is not None):
                return original(*args, **kwargs)  # an explicit cast
            wide = [
                cast(value, FLOAT32) if place in found else value
                for place, value in enumerate(args)
            ]
            named = {
                name: cast(value, FLOAT32) if name in parameters else value
                for name, value in kwargs.items()
            }
            return original(*wide, **named)

    return call


@as_replacement
def in_float32(original: Function, /, *args: Any, **kwargs: Any) -> Any:
    """Call a function with no policy in force, and with float32 arguments for low ones."""
    if CONTEXT.value is None:
        return original(*args, **kwargs)
    with CONTEXT(None):
        return original(*mapped(cast, FLOAT32, args), **mapped(cast, FLOAT32, kwargs))


def code_patch(function: types.FunctionType, replacement: Replacement) -> CodePatch:
    """Return a patch whose code has the function's own signature.

    JAX binds arguments by the signature at every call.
    """

    def stand_in(original: Function) -> types.CodeType:
        return forwarding(function, "CALL", {"CALL": replacement(original)})

    return CodePatch(function, stand_in)
