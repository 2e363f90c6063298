"""Low parameters with float32 master weights, in optax's way.

A transformation's state holds the master weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

import jax
import jax.numpy as jnp

from unamp._function_types import Function
from unamp.dtypes import LOW_DTYPES, low_dtype
from unamp_jax.casting import narrowed
from unamp_jax.spellings import is_of
from unamp_jax.state import CONTEXT, DTYPES, FLOAT32, PyTree

if TYPE_CHECKING:
    from optax import GradientTransformation, GradientTransformationExtraArgs, OptState

__all__ = ["MasterWeightsState", "has_master_weights", "low_parameters", "with_master_weights"]


class MasterWeightsState(NamedTuple):
    """The state of a transformation with master weights.

    Attributes:
        masters: the float32 master weights of low parameters; of others the parameters themselves.
        inner: the state of the transformation that steps them.
    """

    masters: PyTree
    inner: OptState


def low_parameters(
    parameters: PyTree, dtype: object = "bfloat16", keep: Callable[[str], bool] = lambda name: False
) -> PyTree:
    """Return parameters with the float32 ones cast to a low dtype.

    Args:
        parameters: a pytree: of linen's variables, an equinox module, or any other.
        dtype: the low dtype.
        keep: returns whether a parameter stays in float32 (those of norms, say), given its path as
            `jax.tree_util.keystr` writes it.
    """
    low = DTYPES[low_dtype(dtype)]

    def lowered(path: jax.tree_util.KeyPath, leaf: object) -> object:
        if getattr(leaf, "dtype", None) is not FLOAT32 or keep(jax.tree_util.keystr(path)):
            return leaf
        return narrowed(leaf, FLOAT32, low)

    with CONTEXT(None):
        return jax.tree_util.tree_map_with_path(lowered, parameters)


def with_master_weights(
    transformation: GradientTransformation, masters: PyTree = None
) -> GradientTransformationExtraArgs:
    """Return an optax transformation that steps float32 master weights of low parameters.

    In a step the given transformation finds float32 weights, gradients and state. The returned
    updates, added to the low parameters by `optax.apply_updates`, make them the rounded master
    weights. To the bit, master weights are those of float32 steps with the same gradients. No
    policy is in force in a step.

    Args:
        transformation: an optax transformation.
        masters: the parameters before they became low; None: the parameters that ``init`` is
            given, in float32.
    """
    import optax  # imported already, by the maker of the transformation

    inner = optax.with_extra_args_support(transformation)

    def init(parameters: PyTree) -> MasterWeightsState:
        with CONTEXT(None):
            made = jax.tree.map(_wide, parameters if masters is None else masters)
            return MasterWeightsState(made, inner.init(made))

    def update(
        gradients: PyTree, state: MasterWeightsState, params: PyTree = None, **extra: Any
    ) -> tuple[PyTree, MasterWeightsState]:
        if params is None:
            raise ValueError(
                "a transformation with master weights needs the parameters: "
                "update(gradients, state, parameters)"
            )
        with CONTEXT(None):
            steps, after = inner.update(
                jax.tree.map(_wide, gradients), state.inner, state.masters, **extra
            )
            stepped = optax.apply_updates(state.masters, steps)
            return jax.tree.map(_difference, stepped, params), MasterWeightsState(stepped, after)

    _steps.add(update)
    return optax.GradientTransformationExtraArgs(init, update)


#: The steps of transformations that were made here.
_steps: WeakSet[Function] = WeakSet()


def is_transformation(value: object) -> bool:
    """Return whether a value is an optax transformation."""
    return is_of(value, "optax", "GradientTransformation")


def has_master_weights(optimizer: Any) -> bool:
    """Return whether an optimizer of nnx's, or a transformation, steps master weights."""
    transformation = getattr(optimizer, "tx", optimizer)
    return is_transformation(transformation) and tuple(transformation)[1] in _steps


def _wide(leaf: jax.typing.ArrayLike) -> jax.typing.ArrayLike:
    return (
        narrowed(leaf, leaf.dtype, FLOAT32)
        if str(getattr(leaf, "dtype", "")) in LOW_DTYPES
        else leaf
    )


def _difference(master: jax.Array, parameter: jax.Array) -> jax.Array:
    """Return a parameter's difference from its rounded master weight, in float32 for any dtype."""
    if str(parameter.dtype) not in LOW_DTYPES:
        return master - parameter
    return _wide(jnp.asarray(narrowed(master, FLOAT32, parameter.dtype))) - _wide(parameter)
