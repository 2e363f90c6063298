"""Scaled losses, and gradients for an optimizer that steps in place: nnx's or Keras's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax._src import core
from jax._src.interpreters import partial_eval

from unamp.dtypes import LOW_DTYPES
from unamp.errors import NotExpressible
from unamp_jax.masters import has_master_weights, is_transformation
from unamp_jax.spellings import KerasObject, is_of, keras_in_use
from unamp_jax.state import CONTEXT, PyTree

if TYPE_CHECKING:
    from flax import nnx
    from optax import GradientTransformation


def is_optimizer(value: object) -> bool:
    """Return whether a value is an nnx optimizer, Keras's on JAX, or an optax transformation."""
    return is_of(value, "flax.nnx", "Optimizer") or _is_keras(value) or is_transformation(value)


def _is_keras(value: object) -> bool:
    return keras_in_use() and is_of(value, "keras", "optimizers.Optimizer")


def scale_loss(loss: jax.Array, scale: float) -> jax.Array:
    """See `unamp.adapter.Adapter.scale_loss`."""
    if isinstance(loss, core.Tracer) and _is_staged(loss):
        raise NotExpressible(
            "jax.jit would make the loss scale a constant of its program; use "
            "unamp_jax.loss_scaling inside of it, or hand it scaler.scale(jnp.float32(1.0)) to "
            "multiply the loss by"
        )
    with CONTEXT(None):
        wide = loss.astype(jnp.float32) if str(loss.dtype) in LOW_DTYPES else jnp.asarray(loss)
        return wide * jnp.asarray(scale, wide.dtype)


def _is_staged(tracer: core.Tracer) -> bool:
    """Return whether a tracer stands for a number that is not there yet.

    The search goes on through transformations, which have numbers.
    """
    trace = tracer._trace
    while trace is not None:
        if isinstance(trace, partial_eval.DynamicJaxprTrace):
            return True
        trace = getattr(trace, "parent_trace", None)
    return False


def all_finite(tensors: Sequence[PyTree]) -> jax.Array:
    """See `unamp.adapter.Adapter.all_finite`."""
    with CONTEXT(None):
        found = [
            jnp.isfinite(leaf).all()
            for leaf in jax.tree.leaves(list(tensors))
            if _is_floating(leaf)
        ]
        return jnp.stack(found).all() if found else jnp.asarray(True)


def _is_floating(leaf: jax.typing.ArrayLike) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(leaf), jnp.inexact))


class JaxGradients:
    """See `unamp.adapter.Gradients`.

    They are a pytree: for nnx of the parameters' own form, for Keras a list.
    """

    def __init__(
        self, optimizer: nnx.Optimizer | GradientTransformation | KerasObject | None, given: PyTree
    ) -> None:
        if is_transformation(optimizer):
            raise NotExpressible(
                "an optax transformation returns what it steps, and GradScaler.step returns "
                "whether it stepped; unamp_jax.loss_scaling has scale, unscale, adjust and step as "
                "pure functions, inside jax.jit and outside"
            )
        if given is None:
            raise TypeError(
                "JAX's gradients are values: hand them over, "
                "as in step(optimizer, model, gradients=gradients)"
            )
        wrong = next((leaf for leaf in jax.tree.leaves(given) if not hasattr(leaf, "dtype")), None)
        if wrong is not None:
            raise TypeError(
                "gradients must be a pytree of arrays, as jax.grad returns it; "
                f"got a {type(wrong).__name__} in it"
            )
        self.values = given
        self._optimizer: Any = optimizer
        self._widened = optimizer is not None and has_master_weights(optimizer)
        self._finite: jax.Array | None = None

    def dtypes(self) -> frozenset[str]:
        names = frozenset(str(leaf.dtype) for leaf in jax.tree.leaves(self.values))
        return frozenset(
            "float32" if self._widened and name in LOW_DTYPES else name for name in names
        )

    def unscale(self, scale: float) -> None:
        leaves = jax.tree.leaves(self.values)
        self._finite = all_finite(leaves) if leaves else None
        self.values = jax.tree.map(lambda leaf: _divided(leaf, scale, self._widened), self.values)

    def overflow(self) -> bool | None:
        return None if self._finite is None else not bool(self._finite)

    def first_nonfinite(self, network: object) -> str | None:
        for path, leaf in jax.tree_util.tree_leaves_with_path(self.values):
            if not bool(jnp.isfinite(leaf).all()):
                return ".".join(
                    str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key))))
                    for key in path
                )
        return None

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        if _is_keras(self._optimizer):
            return self._optimizer.apply(self.values, *args, **kwargs)
        return self._optimizer.update(*args, self.values, **kwargs)


def _divided(leaf: jax.Array, scale: float, widened: bool) -> jax.Array:
    wide = leaf.astype(jnp.float32) if str(leaf.dtype) in LOW_DTYPES else leaf
    divided = wide * jnp.asarray(1.0 / scale, wide.dtype)
    return divided if widened else divided.astype(leaf.dtype)
