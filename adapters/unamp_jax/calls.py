"""One call of a primitive: `Primitive.bind_with_trace`.

Every function of JAX reaches every transformation through this method. The inputs are cast by the
same trace that the primitive is bound by, then the original runs with no policy in force: rules of
differentiation and of batching, and kernels, run in the dtypes that were decided here, and no rule
is carried out twice.

A primitive that the vocabulary does not have is left to `primitives_without_rule`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from jax._src import core

from unamp._function_types import Function
from unamp.adapter.performing import target
from unamp.adapter.shadowing import NAMED, LeftOut
from unamp.dtypes import FLOAT8
from unamp.errors import BannedOperation
from unamp.policy import Rule
from unamp_jax import kept_calls, observing, primitives_without_rule
from unamp_jax.operands import BF16, Rest, abstract_values, bind, cast, convert, rounded
from unamp_jax.precision import stated_rule
from unamp_jax.state import CONTEXT, DTYPES, ELIGIBLE, FLOAT32, Plan, PrimitiveRule, PyTree, thread

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp

#: The primitives that store into a reference: the stored value takes the reference's dtype.
_STORES = frozenset({"swap", "addupdate"})


def binding(original: Function) -> Function:
    """Return the replacement of `Primitive.bind_with_trace`."""

    def bind_with_trace(
        self: core.Primitive, trace: jax.core.Trace, args: Sequence[object], *rest: Any
    ) -> PyTree:
        plan: Plan | None = CONTEXT.value
        if plan is None:
            return original(self, trace, args, *rest)
        inner = CONTEXT(None)
        inner.__enter__()
        try:
            name = self.name
            if name == "convert_element_type":
                return _converted(original, self, trace, args, rest, plan)
            if name in _STORES:
                return _store(original, self, trace, args, rest)
            known = plan.primitives.get(name)
            if known is None:
                return primitives_without_rule.carry_out(original, self, trace, args, rest, plan)
            return _perform(original, self, trace, args, rest, plan, known)
        finally:
            inner.__exit__(None, None, None)

    return bind_with_trace


def _perform(
    original: Function,
    primitive: core.Primitive,
    trace: jax.core.Trace,
    args: Sequence[object],
    rest: Rest,
    plan: Plan,
    known: PrimitiveRule,
) -> PyTree:
    avals, params = abstract_values(args, rest), rest[-1]
    places, given = [], []
    for n, aval in enumerate(avals):
        dtype = getattr(aval, "dtype", None)
        if dtype is not None and dtype in ELIGIBLE:
            places.append(n)
            # A plain number, which is a weakly typed scalar, is cast as well, but decides nothing.
            if aval.shape or not aval.weak_type:
                given.append(aval)
    op, rule, reported = known
    if not given:
        return original(primitive, trace, args, *rest)
    if rule is Rule.BANNED:
        raise BannedOperation(plan.ban(op))
    if rule is Rule.LOW and "precision" in params:
        rule = stated_rule(params["precision"]) or rule
    found = [aval.dtype for aval in given]
    # Nothing below `jax.numpy` promotes: operands that a rule leaves differing would raise.
    followed = Rule.WIDEST if rule is Rule.UNTOUCHED and plan.policy.active else rule
    # Except under LOW and FP32, operands that agree stay as they are.
    mixed = any(dtype is not found[0] for dtype in found)
    wanted = (
        target(followed, plan.low, FLOAT32, found, mixed)
        if mixed or followed in (Rule.LOW, Rule.FP32)
        else None
    )

    def run(dtype: jnp.dtype | None) -> PyTree:
        return _in_dtype(original, primitive, trace, args, rest, avals, places, dtype)

    if params.get("update_jaxpr") is not None and primitive.name == "scatter":
        # its update function was traced for this dtype
        wanted = avals[0].dtype
    elif wanted is None and any(avals[n].dtype is not found[0] for n in places):
        wanted = found[0]  # a plain number takes the dtype of the tensors

    kept = (
        kept_calls.before_primitive(op, primitive.name, args, params)
        if reported and thread.sink is not None
        else None
    )
    result = run(wanted)
    if rule is Rule.LOW and plan.policy.widen_results:
        result = _widened(trace, result, primitive.multiple_results)
    if reported and thread.sink is not None:

        def low(dtype: str) -> PyTree:
            if "precision" in params and stated_rule(params["precision"]) is not None:
                raise LeftOut(NAMED)
            if dtype in FLOAT8:
                raise LeftOut(
                    "it is bound as a primitive; "
                    "float8 is for products by jax.lax.dot_general and what calls it"
                )
            return run(DTYPES[dtype])

        return observing.report(
            op,
            primitive.name,
            rule,
            given,
            wanted,
            result,
            bind=partial(bind, trace),
            low=low,
            kept=kept,
        )
    return result


def _in_dtype(
    original: Function,
    primitive: core.Primitive,
    trace: jax.core.Trace,
    args: Sequence[object],
    rest: Rest,
    avals: Sequence[jax.core.AbstractValue],
    places: list[int],
    wanted: jnp.dtype | None,
) -> PyTree:
    """Call a primitive with its operands in a dtype; None: they stay as they are."""
    if wanted is None:
        return original(primitive, trace, args, *rest)
    wide = None
    if wanted is not FLOAT32 and primitive.name == "conv_general_dilated":
        wide, rest = _without_preferred(rest)
    args, rest = cast(trace, args, rest, avals, places, wanted)
    result = original(primitive, trace, args, *rest)
    return result if wide is None else convert(trace, result, wanted, wide)


def _without_preferred(rest: Rest) -> tuple[jnp.dtype | None, Rest]:
    """Return a convolution's ``preferred_element_type``, if any, and the call without it.

    JAX cannot differentiate a convolution whose result has another dtype than its operands.
    """
    *avals, params = rest
    return params["preferred_element_type"], (*avals, {**params, "preferred_element_type": None})


def _converted(
    original: Function,
    primitive: core.Primitive,
    trace: jax.core.Trace,
    args: Sequence[object],
    rest: Rest,
    plan: Plan,
) -> jax.Array:
    """Carry out a cast.

    A cast from bfloat16 to float32 keeps its meaning: a compiler must not leave out the rounding to
    bfloat16 before it.
    """
    result = original(primitive, trace, args, *rest)
    (value,), params = args, rest[-1]
    if plan.policy.active and params["new_dtype"] == FLOAT32 and isinstance(result, core.Tracer):
        aval = core.typeof(value)
        if aval.dtype is BF16 and not params["weak_type"]:
            return rounded(trace, result)
    return result


def _store(
    original: Function,
    primitive: core.Primitive,
    trace: jax.core.Trace,
    args: Sequence[object],
    rest: Rest,
) -> PyTree:
    avals = abstract_values(args, rest)
    wanted, found = avals[0].inner_aval.dtype, getattr(avals[1], "dtype", None)
    if wanted in ELIGIBLE and found in ELIGIBLE and found is not wanted:
        args, rest = cast(trace, args, rest, avals, [1], wanted)
    return original(primitive, trace, args, *rest)


def _widened(trace: jax.core.Trace, result: PyTree, several: bool) -> PyTree:
    if several:
        return [_widened(trace, each, False) for each in result]
    found = core.typeof(result).dtype
    return (
        convert(trace, result, found, FLOAT32)
        if found in ELIGIBLE and found is not FLOAT32
        else result
    )
