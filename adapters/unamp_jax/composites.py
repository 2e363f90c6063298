"""One call of a composite operation: a function of Python code that is one operation of the vocabulary.

`jax.nn.softmax` is six primitives: its own rule holds for all of them. Its inputs are cast, and it runs with no policy in
force. A function gets other code while a region is open; that reaches whoever imported it before, operators of arrays, and what
`jax.jit` holds. Layers are in `layers`.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from jax import lax

from unamp.adapter.forwarding import forwarding
from unamp.adapter.observing import equation, traced
from unamp.adapter.plans import is_listed
from unamp.adapter.replacing import CodePatch
from unamp.errors import BannedOperation
from unamp.policy import Policy, Rule
from unamp.vocabulary import vocabulary
from unamp_jax import observing
from unamp_jax.calls import target
from unamp_jax.casting import cast, eligible_dtype, eligible_dtypes, leaves, mapped
from unamp_jax.facts import facts
from unamp_jax.precision import stated_rule, wide_result
from unamp_jax.state import CONTEXT, FLOAT32, Plan, thread

__all__ = ["Composite", "code_patch", "drawing", "emulates", "shapes"]

Args: TypeAlias = tuple[Any, ...]
Kwargs: TypeAlias = dict[str, Any]

#: The argument by which a caller names the result's dtype, and that for a product's.
_DTYPE, _PREFERRED = "dtype", "preferred_element_type"


class Composite:
    """One function that is an operation.

    Args:
        op: the operation's canonical name.
        path: JAX's name for it, as the spellings have it.
        function: the function, or an object that is called like one.
    """

    __slots__ = ("_draws", "_names", "_ranks", "_widens", "op", "original", "path")

    def __init__(self, op: str, path: str, function: Callable[..., Any]) -> None:
        self.op = op
        self.path = path
        self.original = function
        self._names = _parameters(function)
        self._ranks: Mapping[str, str] = facts().ranks.get(op, {})
        self._draws = path.partition("random.")[2] in facts().drawn
        self._widens = path.startswith("lax.")  # which does not promote

    def operation(self, args: Args, policy: Policy) -> str:
        """Return the operation that a call is; the one for every rank where a user's list names that."""
        if not self._ranks or not args or is_listed(policy, self.op):
            return self.op
        return self._ranks.get(str(getattr(args[0], "ndim", None)), self.op)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the composite under the policy in force."""
        plan: Plan | None = CONTEXT.value
        if plan is None:
            return self.original(*args, **kwargs)
        op = self.operation(args, plan.policy)
        if plan.follows_parts(op, self.path):
            return self.original(*args, **kwargs)
        inner = CONTEXT(None)
        inner.__enter__()
        try:
            return self._perform(plan, op, args, kwargs)
        finally:
            inner.__exit__(None, None, None)

    def _perform(self, plan: Plan, op: str, args: Args, kwargs: Kwargs) -> Any:
        found = eligible_dtypes(args, kwargs) if kwargs else eligible_dtypes(args)
        if not found:
            return self.original(*args, **kwargs)
        rule = plan.rule(op)
        if rule is Rule.BANNED:
            raise BannedOperation(plan.ban(op))
        if rule is Rule.LOW and "precision" in self._names:
            rule = stated_rule(self._argument("precision", args, kwargs)) or rule
        activation_only = vocabulary()[op].group == "norm"
        if activation_only:
            found = found[:1]
        wanted = self._target(plan, rule, found, args, kwargs)
        emulated = wanted is plan.low and emulates(op)
        if wanted is None:
            result = self.original(*args, **kwargs)
        elif activation_only and wanted is not FLOAT32:
            result = mapped(cast, wanted, self.original(cast(args[0], wanted), *args[1:], **kwargs))
        elif emulated:
            result = self._emulated(wanted, args, kwargs)
        else:
            result = self._cast(wanted, args, kwargs)
        if rule is Rule.LOW and plan.policy.widen_results:
            result = mapped(cast, FLOAT32, result)
        if thread.sink is not None and traced(op):
            given = shapes((args, kwargs))[: 1 if activation_only else None]
            written = equation(op, args, kwargs)
            return observing.report(thread.sink, op, self.path, rule, given, wanted, result, emulated=emulated, written=written)
        return result

    def _target(self, plan: Plan, rule: Rule, found: list[Any], args: Args, kwargs: Kwargs) -> Any:
        if not plan.policy.active:
            return None
        if rule is Rule.UNTOUCHED:
            if self._draws:
                return FLOAT32  # from low parameters it is biased
            return target(Rule.WIDEST, None, found) if self._widens else None
        preferred = self._argument(_PREFERRED, args, kwargs)
        if self._argument(_DTYPE, args, kwargs) is not None or (preferred is not None and not wide_result(preferred)):
            return target(Rule.WIDEST, None, found)  # an explicit cast, which no rule changes
        wanted = target(rule, plan.low, found)
        # A low dtype that all inputs agree in may be one that this operation has no kernel for.
        if wanted is None and found[0] is not FLOAT32 and emulates(self.op):
            return found[0]
        return wanted

    def _argument(self, name: str, args: Args, kwargs: Kwargs) -> Any:
        """Return an argument of a call by its name; None where the function has no such parameter."""
        place = self._names.get(name)
        return None if place is None else args[place] if place < len(args) else kwargs.get(name)

    def _cast(self, wanted: Any, args: Args, kwargs: Kwargs) -> Any:
        """Call the function with its tensors cast."""
        args, kwargs = mapped(cast, wanted, args), mapped(cast, wanted, kwargs)
        wide = self._argument(_PREFERRED, args, kwargs) if self._ranks and wanted is not FLOAT32 else None
        if wide is None:
            return self.original(*args, **kwargs)
        # JAX cannot differentiate a convolution whose result has another dtype than its operands.
        place = self._names[_PREFERRED]
        if place < len(args):
            args = (*args[:place], None, *args[place + 1 :])
        else:
            kwargs = {**kwargs, _PREFERRED: None}
        return lax.convert_element_type(self.original(*args, **kwargs), wide)

    def _emulated(self, low: Any, args: Args, kwargs: Kwargs) -> Any:
        """Round inputs to low, compute in float32, and round the result to low."""

        def rounded(value: Any, dtype: Any) -> Any:
            return cast(cast(value, low), dtype)

        result = self.original(*mapped(rounded, FLOAT32, args), **mapped(rounded, FLOAT32, kwargs))
        return mapped(_ending_low, low, result)


def _ending_low(value: Any, low: Any) -> Any:
    """Return a result in a low dtype, of float64 too: where JAX has that, constants of a library make results of it."""
    if str(getattr(value, "dtype", "")) == "float64":
        return lax.convert_element_type(value, low)
    return cast(value, low)


def emulates(op: str) -> bool:
    """Return whether an operation has no kernel in low dtypes."""
    emulated = facts().emulated
    return op in emulated["operations"] or vocabulary()[op].group in emulated["groups"]


def shapes(value: Any) -> list[tuple[Any, tuple[int, ...]]]:
    """Return the dtypes and shapes of the eligible tensors in some arguments."""
    return [(dtype, tuple(leaf.shape)) for leaf in leaves(value) if (dtype := eligible_dtype(leaf)) is not None]


def _parameters(function: Callable[..., Any]) -> Mapping[str, int]:
    code = getattr(function, "__code__", None)
    if code is not None and not code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]  # a signature takes as long as all the rest
    else:
        try:
            names = tuple(inspect.signature(function).parameters)
        except (TypeError, ValueError):
            return {}
    return {name: place for place, name in enumerate(names)}


def drawing(function: types.FunctionType, parameters: Sequence[str]) -> Callable[[Any], Any]:
    """Return the maker of a random draw's replacement: low parameters are widened, and no rule reaches what it does.

    Args:
        function: the function that draws.
        parameters: the names of the distribution's parameters.
    """
    places = {place for name, place in _parameters(function).items() if name in parameters}

    def replacement(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if CONTEXT.value is None:
                return original(*args, **kwargs)
            with CONTEXT(None):
                wide = [cast(value, FLOAT32) if place in places else value for place, value in enumerate(args)]
                named = {name: cast(value, FLOAT32) if name in parameters else value for name, value in kwargs.items()}
                return original(*wide, **named)

        return call

    return replacement


def code_patch(function: types.FunctionType, replacement: Callable[[Any], Any]) -> CodePatch:
    """Return a patch whose code has the function's own signature: JAX binds arguments by it at every call.

    Args:
        function: the function.
        replacement: makes what is called in its place, given the original.
    """

    def stand_in(original: Any) -> types.CodeType:
        return forwarding(function, "CALL", {"CALL": replacement(original)})

    return CodePatch(function, stand_in)
