"""One call of a primitive: `Primitive.bind_with_trace`, which stands between every function of JAX's and every transformation.

The inputs are cast by the same trace that the primitive is bound by, then the original runs with no policy in force: rules of
differentiation and of batching, and kernels, run in the dtypes that were decided here, and no rule is carried out twice.

A primitive that the vocabulary does not have is left alone: its operands are what they are, and a program that it carries was
traced under the policy before. Only operands that its own abstract evaluation refuses as they are, and takes as float32, are
widened: they are low where the code that calls it expects float32. A function of the user's that a primitive carries runs
under the policy; see `programs`.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

from jax import lax
from jax._src import core

from unamp.adapter.performing import differing
from unamp.adapter.shadowing import NAMED, LeftOut
from unamp.errors import BannedOperation
from unamp.policy import Rule
from unamp_jax import keeping, observing, programs
from unamp_jax.precision import stated_rule
from unamp_jax.state import CONTEXT, DTYPES, ELIGIBLE, FLOAT32, Plan, thread

__all__ = ["binding"]

#: The newest releases hand over the arguments' abstract values, too.
_AVALS = len(inspect.signature(core.Primitive.bind_with_trace).parameters) == 5
_BF16 = DTYPES["bfloat16"]
#: Stores into a reference: what is stored takes the reference's dtype.
_STORES = frozenset({"swap", "addupdate"})

Bind: TypeAlias = Any


def _target(rule: Rule, low: Any, found: Sequence[Any]) -> Any:
    """Return the dtype that a rule casts to; None to leave everything as it is.

    Args:
        rule: the rule.
        low: the policy's dtype.
        found: the dtypes of the eligible inputs, at least one.
    """
    if rule is Rule.LOW:
        return low
    if rule is Rule.FP32:
        return FLOAT32
    return differing(rule, FLOAT32, found) if any(dtype is not found[0] for dtype in found) else None


def binding(original: Bind) -> Bind:
    """Return the replacement of `Primitive.bind_with_trace`."""

    def bind_with_trace(self: Any, trace: Any, args: Any, *rest: Any) -> Any:
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
                return _unknown(original, self, trace, args, rest, plan)
            return _perform(original, self, trace, args, rest, plan, known)
        finally:
            inner.__exit__(None, None, None)

    return bind_with_trace


def _avals(args: Any, rest: Any) -> Any:
    return rest[0] if _AVALS else [core.typeof(value) for value in args]


def _unknown(original: Bind, primitive: Any, trace: Any, args: Any, rest: Any, plan: Plan) -> Any:
    """Carry out a primitive that no rule is about."""
    avals, params = _avals(args, rest), rest[-1]
    given = programs.followed(primitive.name, params, plan)
    if given is not params:
        rest = (*rest[:-1], given)
    places = [n for n, aval in enumerate(avals) if getattr(aval, "dtype", None) in ELIGIBLE]
    if len({avals[n].dtype for n in places}) > 1 and plan.policy.active and not _takes(primitive, avals, params):
        widened, again = _cast(trace, args, rest, avals, places, FLOAT32)
        if _takes(primitive, _avals(widened, again), params):
            return original(primitive, trace, widened, *again)
    return original(primitive, trace, args, *rest)


def _takes(primitive: Any, avals: Any, params: Any) -> bool:
    """Return whether a primitive's own abstract evaluation takes operands of these dtypes; one without any takes all."""
    try:
        primitive.abstract_eval(*avals, **params)
    except NotImplementedError:
        return True
    except Exception:
        return False  # of whatever kind: it is somebody else's code, and the call itself raises it again
    return True


def _perform(original: Bind, primitive: Any, trace: Any, args: Any, rest: Any, plan: Plan, known: Any) -> Any:
    avals, params = _avals(args, rest), rest[-1]
    places, found, shapes = [], [], []
    for n, aval in enumerate(avals):
        dtype = getattr(aval, "dtype", None)
        if dtype is not None and dtype in ELIGIBLE:
            places.append(n)
            if aval.shape or not aval.weak_type:
                found.append(dtype)
                shapes.append(aval.shape)
    op, rule, reported = known
    if not found:
        return original(primitive, trace, args, *rest)
    if rule is Rule.BANNED:
        raise BannedOperation(plan.ban(op))
    if rule is Rule.LOW and "precision" in params:
        rule = stated_rule(params["precision"]) or rule
    # Nothing below `jax.numpy` promotes: where a rule leaves differing operands alone, they would raise.
    wanted = _target(Rule.WIDEST if rule is Rule.UNTOUCHED and plan.policy.active else rule, plan.low, found)

    def run(dtype: Any) -> Any:
        return _in_dtype(original, primitive, trace, args, rest, avals, places, dtype)

    kept = keeping.before_primitive(op, primitive.name, args, params) if reported and thread.sink is not None else None
    result = run(wanted)
    if rule is Rule.LOW and plan.policy.widen_results:
        result = _widened(trace, result, primitive.multiple_results)
    if reported and thread.sink is not None:
        given = list(zip(found, shapes, strict=True))
        bind = partial(_bind, trace)

        def low(dtype: str) -> Any:
            if "precision" in params and stated_rule(params["precision"]) is not None:
                raise LeftOut(NAMED)
            return run(DTYPES[dtype])

        return observing.report(thread.sink, op, primitive.name, rule, given, wanted, result, bind=bind, low=low, kept=kept)
    return result


def _in_dtype(
    original: Bind, primitive: Any, trace: Any, args: Any, rest: Any, avals: Any, places: list[int], wanted: Any
) -> Any:
    """Call a primitive with its operands in a dtype; None where they stay what they are."""
    if wanted is None:
        return original(primitive, trace, args, *rest)
    wide = None
    if wanted is not FLOAT32 and primitive.name == "conv_general_dilated":
        wide, rest = _without_preferred(rest)
    args, rest = _cast(trace, args, rest, avals, places, wanted)
    result = original(primitive, trace, args, *rest)
    return result if wide is None else _convert(trace, result, wanted, wide)


def _without_preferred(rest: Any) -> tuple[Any, Any]:
    """Return the dtype that a convolution's result shall have beside its operands', if any, and the call without it.

    JAX cannot differentiate a convolution whose result has another dtype than its operands.
    """
    *avals, params = rest
    return params["preferred_element_type"], (*avals, {**params, "preferred_element_type": None})


def _cast(trace: Any, args: Any, rest: Any, avals: Any, places: list[int], wanted: Any) -> tuple[Any, Any]:
    given = list(args)
    for n in places:
        if avals[n].dtype is not wanted:
            given[n] = _convert(trace, given[n], avals[n].dtype, wanted)
    return given, ([core.typeof(value) for value in given], rest[-1]) if _AVALS else (rest[-1],)


def _convert(trace: Any, value: Any, found: Any, wanted: Any) -> Any:
    params = {"new_dtype": wanted, "weak_type": False, "sharding": None}
    made = _bind(trace, lax.convert_element_type_p, value, params)
    if found is _BF16 and wanted is FLOAT32 and isinstance(made, core.Tracer):
        return _rounded(trace, made)
    return made


def _rounded(trace: Any, value: Any) -> Any:
    """Return a float32 number that came from bfloat16, so that no compiler leaves out the rounding between the two."""
    return _bind(trace, lax.reduce_precision_p, value, {"exponent_bits": 8, "mantissa_bits": 7})


def _bind(trace: Any, primitive: Any, value: Any, params: dict[str, Any]) -> Any:
    if _AVALS:
        return primitive.bind_with_trace(trace, [value], [core.typeof(value)], params)
    return primitive.bind_with_trace(trace, [value], params)


def _converted(original: Bind, primitive: Any, trace: Any, args: Any, rest: Any, plan: Plan) -> Any:
    """Carry out a cast, which keeps its meaning: one from bfloat16 to float32 starts from a number that was rounded."""
    result = original(primitive, trace, args, *rest)
    (value,), params = args, rest[-1]
    if plan.policy.active and params["new_dtype"] == FLOAT32 and isinstance(result, core.Tracer):
        aval = core.typeof(value)
        if aval.dtype is _BF16 and not params["weak_type"]:
            return _rounded(trace, result)
    return result


def _store(original: Bind, primitive: Any, trace: Any, args: Any, rest: Any) -> Any:
    avals = _avals(args, rest)
    wanted, found = avals[0].inner_aval.dtype, getattr(avals[1], "dtype", None)
    if wanted in ELIGIBLE and found in ELIGIBLE and found is not wanted:
        args, rest = _cast(trace, args, rest, avals, [1], wanted)
    return original(primitive, trace, args, *rest)


def _widened(trace: Any, result: Any, several: bool) -> Any:
    if several:
        return [_widened(trace, each, False) for each in result]
    found = core.typeof(result).dtype
    return _convert(trace, result, found, FLOAT32) if found in ELIGIBLE and found is not FLOAT32 else result
