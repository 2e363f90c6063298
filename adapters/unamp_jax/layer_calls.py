"""One call of a layer of flax, equinox or Keras that is one operation of the vocabulary.

A layer's parameters are not among its arguments. So its inputs are cast, and it runs under a plan
in which all its parts compute in one dtype: `nnx.Linear` is a product and a sum with a float32
bias, and both follow the layer's rule.

A layer of flax's may state the dtype that it computes in. Where that is float32 the policy decides,
as for a layer that states none: it is the dtype of all layers outside of regions, and libraries
pass it on where a user said nothing. Any other dtype is kept.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from unamp import amp_warnings
from unamp._function_types import Args, Function, Keywords
from unamp.adapter.arguments import leaves
from unamp.adapter.keras_policies import layer_path, states_float32
from unamp.adapter.patching import Patch, find
from unamp.adapter.plans import is_listed
from unamp.adapter.replacing import as_replacement
from unamp.policy import Policy, Rule
from unamp.vocabulary import vocabulary
from unamp_jax.casting import cast, eligible_dtype, mapped
from unamp_jax.composites import Composite, code_patch, performer
from unamp_jax.facts import facts
from unamp_jax.precision import stated_rule
from unamp_jax.spellings import is_of
from unamp_jax.state import CONTEXT, DTYPES, ELIGIBLE, FLOAT32, Plan, PyTree

if TYPE_CHECKING:
    import jax.numpy as jnp

    from unamp_jax.networks import Layer

#: Groups of layers that are a product each, whose precision a caller may state.
_PRODUCTS = frozenset({"matmul", "conv"})


def patch_of(function: types.FunctionType, layers: Mapping[type, tuple[str, str]]) -> Patch:
    """Return the patch of a method that layers are called by; several classes may share one.

    Args:
        layers: the classes that have the method, each with its operation and spelling.
    """

    @as_replacement
    def call(original: Function, layer: Layer, /, *args: Any, **kwargs: Any) -> Any:
        plan: Plan | None = CONTEXT.value
        op, path = next((layers[of] for of in type(layer).__mro__ if of in layers), ("", ""))
        if plan is None or not op:
            return original(layer, *args, **kwargs)
        operator = _Layer(_of_rank(op, layer, plan.policy), path, original, layer)
        return performer.perform(plan, operator, (layer, *args), kwargs)

    return code_patch(function, call)


class _Layer(Composite):
    """One layer that is an operation; `kept` is the dtype that it states and keeps, or None."""

    __slots__ = ("_is_keras", "_layer", "_path", "kept")

    def __init__(self, op: str, path: str, original: Function, layer: Layer) -> None:
        super().__init__(op, path, original)
        self.layer = self.bound = self.widens = True
        stated = _stated_dtype(layer)
        self.kept = stated if stated != FLOAT32 else None
        self.activation_only = self.activation_only and self.kept is None
        self._layer = layer
        self._is_keras = getattr(layer, "dtype_policy", None) is not None
        self._path = path if stated is None else f"{path}(dtype={stated})"

    def parameters(self, args: Args) -> Mapping[int, object]:
        return (
            {} if self.activation_only else {id(value): value for value in _parameters(self._layer)}
        )

    @property
    def path(self) -> str:
        return layer_path(self._layer, self._path) if self._is_keras else self._path

    def rule(self, plan: Plan, args: Args, kwargs: Keywords) -> Rule:
        rule, low = plan.rule(self.op), str(plan.low)
        if rule is Rule.LOW and plan.policy.active:
            if self.kept not in (None, plan.low):
                amp_warnings.keeps_its_dtype("jax", self.path, low)
            if self._is_keras and states_float32(self._layer):
                amp_warnings.follows_the_region(
                    "jax", type(self._layer).__name__, self._layer.name, low
                )
        if self.kept is not None:
            return Rule.UNTOUCHED
        return self.stated_rule(args, kwargs) or rule if rule is Rule.LOW else rule

    def stated_rule(self, args: Args, kwargs: Keywords) -> Rule | None:
        is_product = vocabulary()[self.op].group in _PRODUCTS
        return stated_rule(getattr(self._layer, "precision", None)) if is_product else None

    def named_dtype(self, args: Args, kwargs: Keywords) -> jnp.dtype | None:
        return self.kept

    def run(self, plan: Plan, dtype: jnp.dtype | None, args: Args, kwargs: Keywords) -> PyTree:
        if self.kept is not None or not plan.policy.active:
            return self.call(*args, **kwargs)
        rule = Rule.WIDEST if dtype is None else Rule.FP32 if dtype is FLOAT32 else Rule.LOW
        has_activation = self._is_keras and self.op in facts().parts
        inside: Plan | None = plan.within(self.op, rule, has_activation)
        if self.activation_only and dtype is not None:
            # Parameters and running statistics stay float32, with no plan in force; but Keras'
            # dtype policies need one to see that a region decides.
            inside = plan.within(self.op, Rule.UNTOUCHED) if self._is_keras else None
        with CONTEXT(inside):
            result = self.call(*args, **kwargs)
        # with an activation inside, the result is the activation's, under its own rule
        return result if dtype is None or has_activation else mapped(cast, dtype, result)

    def run_again(self, plan: Plan, args: Args, kwargs: Keywords) -> PyTree:
        if getattr(self._layer, "scope", None) is None:
            return super().run_again(plan, args, kwargs)
        with CONTEXT(plan):
            return self.run_unchanged(args, kwargs)

    def run_unchanged(self, args: Args, kwargs: Keywords) -> PyTree:
        if getattr(self._layer, "scope", None) is None:
            return super().run_unchanged(args, kwargs)
        # bound, it could not run again: linen takes each name of a variable once
        module, variables = self._layer.unbind()
        return module.apply(variables, *args[1:], **kwargs)

    def state(self, args: Args) -> list[object]:
        if any(is_of(value, "equinox.nn", "State") for value in leaves(args)):
            return [object()]  # as if it changed: one call uses the state up
        if (variables := getattr(self._layer, "non_trainable_variables", None)) is not None:
            # Keras
            return [variable.value for variable in variables]
        if getattr(self._layer, "scope", None) is not None:  # linen
            return list(jax.tree.leaves(self._layer.variables))
        if is_of(self._layer, "haiku", "Module"):
            return list(jax.tree.leaves(self._layer.state_dict()))
        return (
            jax.tree.leaves(find("flax.nnx", "state")(self._layer))
            if is_of(self._layer, "flax.nnx", "Module")
            else []
        )


def _parameters(layer: Layer) -> list[object]:
    """Return a layer's parameters, with those of the layers inside.

    Linen keeps them elsewhere, and states their dtype before they are made. A variable of Keras is
    replaced by zeros of its shape and dtype, as reading its value may cast it.
    """
    own = [value for value in vars(layer).values() if eligible_dtype(value) is not None]
    if own:
        return own
    if hasattr(layer, "dtype_policy"):  # Keras
        known = [(DTYPES.get(variable.dtype), variable.shape) for variable in layer.weights]
        return [
            np.broadcast_to(np.zeros((), dtype), shape)
            for dtype, shape in known
            if dtype is not None
        ]
    given = getattr(layer, "variables", None) if getattr(layer, "scope", None) is not None else None
    if given:
        return list(jax.tree.leaves(given.get("params", {})))
    stated = getattr(layer, "param_dtype", None)
    try:
        dtype = np.dtype(stated) if stated is not None else None
    except TypeError:
        return []
    return [np.zeros((), dtype)] if dtype in ELIGIBLE else []


def _stated_dtype(layer: Layer) -> jnp.dtype | None:
    """Return the dtype that a flax layer was made to compute in; None where none was stated."""
    stated = getattr(layer, "dtype", None) if type(layer).__module__.startswith("flax.") else None
    return None if stated is None else np.dtype(stated)


def _of_rank(op: str, layer: Layer, policy: Policy) -> str:
    """Return a layer's operation: that of its rank, where its class serves every rank.

    Where a user's list names the operation of all ranks, it is that one.
    """
    ranks = facts().ranks.get(op)
    if ranks is None or is_listed(policy, op):
        return op
    rank = getattr(layer, "num_spatial_dims", None)
    if rank is None:
        size = getattr(layer, "kernel_size", ())
        rank = 1 if isinstance(size, int) else len(size)
    return ranks.get(str(rank + 2), op)
