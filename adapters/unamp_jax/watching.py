"""Gradients by name, and sums of their numbers, for `unamp.watch`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from unamp.adapter.keras_models import named_variables
from unamp.adapter.patching import find
from unamp.errors import NotExpressible
from unamp_jax.gradient_hooks import named_leaves
from unamp_jax.spellings import KerasObject
from unamp_jax.state import CONTEXT, PyTree

if TYPE_CHECKING:
    from flax import nnx


def named_gradients(
    network: object, optimizer: object, given: PyTree
) -> list[tuple[str, nnx.Variable | KerasObject | None, jax.Array]]:
    """See `unamp.adapter.NamesGradients.named_gradients`.

    Names are the paths in the gradients' pytree. Only nnx has parameters that change in place.
    Those of other libraries, and of a list that Keras's optimizer takes, are handed over by the
    caller.
    """
    if isinstance(given, (list, tuple)) and hasattr(network, "trainable_variables"):
        return _of_keras(network, given)
    held = dict(_held(network))
    found = []
    for name, leaf in named_leaves(given):
        if isinstance(leaf, jax.core.Tracer):
            raise NotExpressible(
                "unamp.watch looks at numbers, which are not there while JAX traces: "
                "step() is for outside jit"
            )
        found.append((name, held.get(name), leaf))
    return found


def _of_keras(
    network: KerasObject, given: Sequence[jax.Array]
) -> list[tuple[str, nnx.Variable | KerasObject | None, jax.Array]]:
    variables = named_variables(network)
    if len(variables) != len(given):
        raise ValueError(
            f"there are {len(given)} gradients "
            f"for {len(variables)} trainable variables of the network"
        )
    return [
        (name, variable, gradient)
        for (name, variable), gradient in zip(variables, given, strict=True)
    ]


def _held(network: object) -> Iterator[tuple[str, nnx.Variable]]:
    """Yield the variables of an nnx module by their paths in the gradients of `nnx.grad`."""
    nnx = find("flax", "nnx")
    if nnx is not None and isinstance(network, nnx.Module):
        yield from (
            (".".join(map(str, path)), each)
            for path, each in nnx.iter_graph(network)
            if isinstance(each, nnx.Variable)
        )


def numbers(tensor: jax.Array | nnx.Variable | KerasObject) -> jax.Array:
    """See `unamp.adapter.NamesGradients.numbers`."""
    with CONTEXT(None):
        # a variable of nnx's; Keras's, and older ones of nnx's, have `value`
        read = getattr(tensor, "get_value", None)
        array = jnp.asarray(getattr(tensor, "value", tensor) if read is None else read())
        return array if array.dtype == jnp.float64 else array.astype(jnp.float32)


def total(numbers: jax.Array) -> jax.Array:
    """See `unamp.adapter.NamesGradients.total`."""
    with CONTEXT(None):
        return jnp.sum(numbers)


def fetched(totals: Sequence[jax.Array]) -> list[float]:
    """See `unamp.adapter.NamesGradients.fetched`."""
    return [float(each) for each in jax.device_get(list(totals))]
