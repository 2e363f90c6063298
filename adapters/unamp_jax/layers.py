"""One call of a layer of flax, equinox or Keras that is one operation of the vocabulary.

Its parameters are not among its arguments. So its inputs are cast, and it runs under a plan by which all of it computes in one
dtype: `nnx.Linear` is a product and a sum with a float32 bias, and both are the layer.

A layer of flax's may state the dtype that it computes in. float32 is what everything computes in outside of regions, and what
libraries hand down where a user said nothing: the policy decides, as for a layer that states none. Any other dtype is kept.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
import numpy as np

from unamp import amp_warnings
from unamp.adapter.keras_policies import layer_path, states_float32
from unamp.adapter.observing import equation, traced
from unamp.adapter.patching import Patch
from unamp.adapter.plans import is_listed
from unamp.errors import BannedOperation
from unamp.policy import Policy, Rule
from unamp.vocabulary import vocabulary
from unamp_jax import observing
from unamp_jax.calls import target
from unamp_jax.casting import cast, eligible_dtypes, mapped
from unamp_jax.composites import code_patch, shapes
from unamp_jax.facts import facts
from unamp_jax.precision import stated_rule
from unamp_jax.state import CONTEXT, ELIGIBLE, FLOAT32, Plan, thread

__all__ = ["LayerCall"]

Args: TypeAlias = tuple[Any, ...]
Kwargs: TypeAlias = dict[str, Any]
#: Groups of layers that are a product each, whose precision a caller may state.
_PRODUCTS = frozenset({"matmul", "conv"})
#: The dtype and the shape of a tensor that a rule is about.
Given: TypeAlias = tuple[Any, tuple[int, ...]]


class LayerCall:
    """A method that layers are called by; several classes may share one.

    Args:
        function: the method's function.
        layers: each class that it is the method of, with the operation that it is.

    Attributes:
        patch: puts this in its place.
    """

    def __init__(self, function: types.FunctionType, layers: Mapping[type, tuple[str, str]]) -> None:
        self._layers = layers
        self.original: Any = function
        self.patch: Patch = code_patch(function, self._replacement)

    def _replacement(self, original: Any) -> Any:
        self.original = original

        def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
            plan: Plan | None = CONTEXT.value
            if plan is None:
                return original(layer, *args, **kwargs)
            return self._perform(plan, layer, args, kwargs)

        return call

    def _perform(self, plan: Plan, layer: Any, args: Args, kwargs: Kwargs) -> Any:
        op, path = next((self._layers[of] for of in type(layer).__mro__ if of in self._layers), ("", ""))
        op = _of_rank(op, layer, plan.policy)
        if not op or plan.follows_parts(op, path):
            return self.original(layer, *args, **kwargs)
        rule = plan.rule(op)
        if _is_keras(layer):
            path = self._keras_path(plan, layer, rule, path)
        stated = _stated_dtype(layer)
        if stated is not None:
            path = f"{path}(dtype={stated})"
            if stated != FLOAT32:
                return self._kept(plan, layer, (op, path, stated), args, kwargs)
        if rule is Rule.LOW and vocabulary()[op].group in _PRODUCTS:
            rule = stated_rule(getattr(layer, "precision", None)) or rule
        norm = vocabulary()[op].group == "norm"
        found = eligible_dtypes(args, kwargs)
        if rule is Rule.BANNED and found:
            raise BannedOperation(plan.ban(op))
        given = shapes((args, kwargs))[:1] if norm else [*shapes((args, kwargs)), *parameters(layer)]
        seen = [dtype for dtype, _ in given]
        if not seen or not plan.policy.active:
            return self._unchanged(plan, layer, op, path, rule, given, args, kwargs)
        with CONTEXT(None):
            wanted = target(Rule.WIDEST if rule is Rule.UNTOUCHED else rule, plan.low, seen)
            if wanted is None and norm and seen[0] is not FLOAT32:
                wanted = seen[0]  # flax's answers in the dtype of its parameters
            sink, thread.sink = thread.sink, None  # what a layer is made of is its own affair
            try:
                result = self._carry_out(plan, layer, op, norm, wanted, args, kwargs)
            finally:
                thread.sink = sink
            if rule is Rule.LOW and plan.policy.widen_results:
                result = mapped(cast, FLOAT32, result)
            return self._report(layer, op, path, rule, given, wanted, result)

    def _keras_path(self, plan: Plan, layer: Any, rule: Rule, path: str) -> str:
        """Return a layer's name in a trace, and warn where it states float32 and becomes low."""
        if not states_float32(layer):
            return path
        if rule is Rule.LOW and plan.policy.active:
            amp_warnings.follows_the_region("jax", type(layer).__name__, layer.name, str(plan.low))
        return layer_path(layer, path)

    def _kept(self, plan: Plan, layer: Any, stated: tuple[str, str, Any], args: Args, kwargs: Kwargs) -> Any:
        """Call a layer in the dtype that it states."""
        op, path, dtype = stated
        if plan.policy.active and plan.rule(op) is Rule.LOW and dtype is not plan.low:
            amp_warnings.keeps_its_dtype("jax", path, str(plan.low))
        given = [*shapes((args, kwargs)), *parameters(layer)]
        sink, thread.sink = thread.sink, None
        try:
            with CONTEXT(None):
                result = self.original(layer, *args, **kwargs)
        finally:
            thread.sink = sink
        with CONTEXT(None):
            return self._report(layer, op, path, Rule.UNTOUCHED, given, dtype, result)

    def _carry_out(self, plan: Plan, layer: Any, op: str, norm: bool, wanted: Any, args: Args, kwargs: Kwargs) -> Any:
        activated = op in facts().parts and _is_keras(layer)
        if wanted is None:
            with CONTEXT(plan.within(op, Rule.WIDEST, activated)):
                return self.original(layer, *args, **kwargs)
        args, kwargs = mapped(cast, wanted, args), mapped(cast, wanted, kwargs)
        if norm:  # its parameters and running statistics stay float32
            with CONTEXT(_left_alone(plan, op, layer)):
                result = self.original(layer, *args, **kwargs)
            return mapped(cast, wanted, result)
        with CONTEXT(plan.within(op, Rule.FP32 if wanted is FLOAT32 else Rule.LOW, activated)):
            result = self.original(layer, *args, **kwargs)
        return result if activated else mapped(cast, wanted, result)  # there an activation's result comes last

    def _unchanged(
        self, plan: Plan, layer: Any, op: str, path: str, rule: Rule, given: list[Given], args: Args, kwargs: Kwargs
    ) -> Any:
        left_alone = _left_alone(plan, op, layer) if plan.policy.active else None if thread.sink is not None else plan
        with CONTEXT(left_alone):
            result = self.original(layer, *args, **kwargs)
            if given:
                result = self._report(layer, op, path, rule, given, None, result)
        return result

    def _report(self, layer: Any, op: str, path: str, rule: Rule, given: list[Given], wanted: Any, result: Any) -> Any:
        if thread.sink is not None and traced(op):
            texts = [getattr(layer, "einsum_str", None)]
            return observing.report(thread.sink, op, path, rule, given, wanted, result, written=equation(op, texts))
        return result


def parameters(layer: Any) -> list[Given]:
    """Return the dtypes and shapes of a layer's own parameters.

    Flax's linen keeps them elsewhere, and says before they are made what dtype they will have.
    """
    found = shapes([value for value in vars(layer).values() if not isinstance(value, (list, tuple, dict))])
    if found:
        return found
    variables = getattr(layer, "_trainable_variables", None)
    if variables is not None:  # Keras
        return shapes(list(variables))
    given = getattr(layer, "variables", None) if getattr(layer, "scope", None) is not None else None
    if given:
        return shapes(jax.tree.leaves(given.get("params", {})))
    stated = getattr(layer, "param_dtype", None)
    try:
        dtype = np.dtype(stated) if stated is not None else None
    except TypeError:
        return []
    return [(dtype, ())] if dtype in ELIGIBLE else []


def _stated_dtype(layer: Any) -> Any:
    """Return the dtype that a layer of flax's was made to compute in; None where it was not told."""
    stated = getattr(layer, "dtype", None) if type(layer).__module__.startswith("flax.") else None
    return None if stated is None else np.dtype(stated)


def _left_alone(plan: Plan, op: str, layer: Any) -> Plan | None:
    """Return the plan inside a layer that no rule reaches into; Keras' dtype policies see by it that a region decides."""
    return plan.within(op, Rule.UNTOUCHED) if _is_keras(layer) else None


def _is_keras(layer: Any) -> bool:
    return getattr(layer, "dtype_policy", None) is not None


def _of_rank(op: str, layer: Any, policy: Policy) -> str:
    """Return the operation that a layer is where its class serves every rank, unless a user's list names that of all."""
    ranks = facts().ranks.get(op)
    if ranks is None or is_listed(policy, op):
        return op
    rank = getattr(layer, "num_spatial_dims", None)
    if rank is None:
        size = getattr(layer, "kernel_size", ())
        rank = 1 if isinstance(size, int) else len(size)
    return ranks.get(str(rank + 2), op)
