"""Loss scaling as pure functions, for `jax.jit`.

The state is a pytree, the arithmetic that of `unamp.GradScaler`.

    state = loss_scaling.init()

    @jax.jit
    def step(parameters, opt_state, state, batch):
        scaled = lambda p: loss_scaling.scale(state, loss(p, batch))
        gradients, finite = loss_scaling.unscale(state, jax.grad(scaled)(parameters))
        parameters, opt_state = loss_scaling.step(
            transformation, finite, gradients, opt_state, parameters
        )
        return parameters, opt_state, loss_scaling.adjust(state, finite)

No policy is in force in any of these functions, whatever region is open.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax
from jax._src import config

from unamp.dtypes import LOW_DTYPES
from unamp.scaling.loss_scale import LossScale
from unamp_jax import scaling, training
from unamp_jax.state import CONTEXT, Array, PyTree

if TYPE_CHECKING:
    from optax import GradientTransformation, OptState

__all__ = ["LossScaleState", "adjust", "init", "of", "scale", "step", "unscale"]

#: The fields that change from step to step; the rules are constants of a compiled program.
_NUMBERS = ("scale", "growth_tracker", "backoff_tracker", "skipped")


#: Further arguments of `init`.
_RULES = frozenset({"backoff_interval", "dynamic", "minimum", "maximum"})


@dataclass(frozen=True)
class LossScaleState:
    """A loss scale, as a pytree.

    Attributes:
        scale: the factor, a float32 number.
        growth_tracker, backoff_tracker: the numbers of updates in a row without an overflow, and
            with one.
        skipped: the number of updates with an overflow.
        rules: how the scale moves; see `unamp.scaling.loss_scale.LossScale`.
    """

    scale: Array
    growth_tracker: Array
    backoff_tracker: Array
    skipped: Array
    rules: LossScale


jax.tree_util.register_dataclass(LossScaleState, data_fields=_NUMBERS, meta_fields=("rules",))
assert {field.name for field in fields(LossScaleState)} == {*_NUMBERS, "rules"}


def init(
    init_scale: float = 2.0**16,
    growth_factor: float = 2.0,
    backoff_factor: float = 0.5,
    growth_interval: int = 2000,
    **rules: Any,
) -> LossScaleState:
    """Return the state to begin with.

    Args:
        init_scale: the first scale.
        growth_factor: the factor of the scale after `growth_interval` updates in a row without an
            overflow.
        backoff_factor: the factor of the scale after an overflow.
        growth_interval: see `growth_factor`.
        **rules: ``backoff_interval``, ``dynamic``, ``minimum`` and ``maximum``, as
            `unamp.GradScaler` takes them.

    Raises:
        TypeError, ValueError: for a number that the rules cannot work with, and for an unknown
            argument.
    """
    if wrong := rules.keys() - _RULES:
        given = [
            "init_scale",
            "growth_factor",
            "backoff_factor",
            "growth_interval",
            *sorted(_RULES),
        ]
        hint = "; the first scale is init_scale" if "scale" in wrong else ""
        raise TypeError(
            f"loss_scaling.init() has no argument {min(wrong)!r}; it takes {', '.join(given)}{hint}"
        )
    return of(
        LossScale(init_scale, growth_factor, backoff_factor, growth_interval, **rules).checked()
    )


def of(loss_scale: LossScale) -> LossScaleState:
    """Return the state of a loss scale, for example of one restored from a saved state."""
    counts = [
        jnp.asarray(count, jnp.int32)
        for count in (loss_scale.growth_tracker, loss_scale.backoff_tracker, 0)
    ]
    rules = loss_scale._replace(scale=1.0, growth_tracker=0, backoff_tracker=0)
    return LossScaleState(
        jnp.asarray(loss_scale.scale, jnp.float32), counts[0], counts[1], counts[2], rules
    )


def scale(state: LossScaleState, loss: Array) -> Array:
    """Return a loss times the scale; a low loss becomes float32.

    The gradient flows back through the product.
    """
    with CONTEXT(None):
        wide = loss.astype(jnp.float32) if str(loss.dtype) in LOW_DTYPES else loss
        return wide * state.scale.astype(wide.dtype)


def unscale(state: LossScaleState, gradients: PyTree) -> tuple[PyTree, Array]:
    """Return gradients divided by the scale, and whether all of them are finite.

    Low gradients are divided in float32.

    Args:
        state: the state that the loss was scaled with.
        gradients: a pytree of float32 or bfloat16 gradients.

    Raises:
        ValueError: for float16 gradients: unscaled, small ones would vanish in spite of scaling.
    """
    if any(str(leaf.dtype) == "float16" for leaf in jax.tree.leaves(gradients)):
        raise ValueError(
            "there are float16 gradients: the parameters are low already; keep them in float32 and "
            "let a region cast them, or differentiate with respect to the float32 master weights"
        )
    with CONTEXT(None):
        inverse = 1.0 / state.scale
        finite = scaling.all_finite(jax.tree.leaves(gradients))
        return jax.tree.map(lambda leaf: _times(leaf, inverse), gradients), finite


def _times(leaf: Array, factor: Array) -> Array:
    wide = leaf.astype(jnp.float32) if str(leaf.dtype) in LOW_DTYPES else leaf
    return (wide * factor.astype(wide.dtype)).astype(leaf.dtype)


def adjust(state: LossScaleState, finite: Array) -> LossScaleState:
    """Return the state after one update, with `unamp.GradScaler`'s arithmetic.

    Args:
        state: the state before.
        finite: whether all gradients were finite, as `unscale` says.
    """
    rules = state.rules
    with CONTEXT(None):
        overflow = jnp.logical_not(finite)
        skipped = state.skipped + overflow.astype(jnp.int32)
        if not rules.dynamic:
            return LossScaleState(
                state.scale, state.growth_tracker, state.backoff_tracker, skipped, rules
            )
        bad, good = state.backoff_tracker + 1, state.growth_tracker + 1
        backs_off, grows = (
            overflow & (bad >= rules.backoff_interval),
            finite & (good >= rules.growth_interval),
        )
        lower = jnp.maximum(_product(state.scale, rules.backoff_factor), jnp.float32(rules.minimum))
        grown = _product(state.scale, rules.growth_factor)
        higher = jnp.where(
            jnp.isinf(grown), state.scale, jnp.minimum(grown, jnp.float32(rules.maximum))
        )
        return LossScaleState(
            jnp.where(backs_off, lower, jnp.where(grows, higher, state.scale)),
            jnp.where(finite & ~grows, good, 0).astype(jnp.int32),
            jnp.where(overflow & ~backs_off, bad, 0).astype(jnp.int32),
            skipped,
            rules,
        )


def _product(number: Array, factor: float) -> Array:
    """Return a product that is rounded to float32 once, as Python's is."""
    with config.enable_x64(True):
        return (number.astype(jnp.float64) * jnp.asarray(factor, jnp.float64)).astype(jnp.float32)


def step(
    transformation: GradientTransformation,
    finite: Array,
    gradients: PyTree,
    opt_state: OptState,
    parameters: PyTree,
    **extra: Any,
) -> tuple[PyTree, OptState]:
    """Return parameters and optax state after a step, or as they were where it is skipped.

    Args:
        transformation: the optax transformation.
        finite: whether to step, as `unscale` says.
        gradients: the unscaled gradients.
        opt_state: the transformation's state.
        parameters: the parameters.
        **extra: for the transformation's own ``update``.
    """
    import optax  # imported already, by the maker of the transformation

    extra = training.with_losses(extra)

    def taken(
        gradients: PyTree, opt_state: OptState, parameters: PyTree
    ) -> tuple[PyTree, OptState]:
        updates, after = transformation.update(gradients, opt_state, parameters, **extra)
        return optax.apply_updates(parameters, updates), after

    def skipped(
        gradients: PyTree, opt_state: OptState, parameters: PyTree
    ) -> tuple[PyTree, OptState]:
        return parameters, opt_state

    with CONTEXT(None):
        return lax.cond(finite, taken, skipped, gradients, opt_state, parameters)  # type: ignore[no-any-return]
