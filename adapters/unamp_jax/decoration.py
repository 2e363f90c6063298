"""Low parameters, in place: modules of nnx, and the optimizers that step their master weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import jax

from unamp.adapter import Decoration
from unamp.adapter.layers import excluded_layers
from unamp.adapter.patching import find
from unamp.dtypes import LOW_DTYPES
from unamp.errors import NotExpressible
from unamp_jax.casting import narrowed
from unamp_jax.masters import has_master_weights, with_master_weights
from unamp_jax.networks import inner_modules
from unamp_jax.state import CONTEXT, DTYPES, FLOAT32

if TYPE_CHECKING:
    from flax.nnx import Module, Optimizer, Variable


def decorate(
    networks: Sequence[object], optimizers: Sequence[object], decoration: Decoration
) -> None:
    """See `unamp.adapter.Adapter.decorate`."""
    nnx = find("flax", "nnx")
    for value in (*networks, *optimizers):
        if nnx is None or not isinstance(value, (nnx.Module, nnx.Optimizer)):
            raise NotExpressible(
                f"{type(value).__name__} has no parameters that can be changed where they are; "
                "unamp_jax.low_parameters returns low ones, and unamp_jax.with_master_weights "
                "wraps an optax transformation"
            )
    if decoration.master_grad:
        raise NotExpressible(
            "JAX's gradients are values: cast them where you add them up, and leave master_grad out"
        )
    if decoration.save_dtype not in (None, decoration.dtype):
        raise NotExpressible(
            "JAX's parameters are values: cast the state where you save it, "
            "and leave save_dtype out"
        )
    variables = list(_variables(networks, decoration, nnx))
    pairs = _pairs(networks, optimizers)
    low = DTYPES[decoration.dtype]
    with CONTEXT(None):
        made = [
            # before the cast below: master weights start from the float32 parameters
            nnx.Optimizer(network, with_master_weights(optimizer.tx), wrt=optimizer.wrt)
            for network, optimizer in pairs
            if decoration.master_weights
        ]
        for variable in variables:
            variable.set_value(narrowed(variable.get_value(), FLOAT32, low))
        for (_, optimizer), other in zip(pairs, made, strict=False):
            optimizer.tx, optimizer.opt_state = other.tx, other.opt_state


def _variables(
    networks: Sequence[Module], decoration: Decoration, nnx: ModuleType
) -> Iterator[Variable]:
    """Yield the parameters that become low, each once."""
    instances, chosen = excluded_layers(
        decoration.excluded, nnx.Module, "layers of nnx and classes of them"
    )
    classes = (nnx.BatchNorm, nnx.InstanceNorm, *chosen)
    kept: set[int] = set()
    for network in networks:
        for _, layer in inner_modules(network, nnx):
            if isinstance(layer, classes) or id(layer) in instances:
                kept |= {id(leaf) for leaf in _leaves(layer, nnx)}
    taken: set[int] = set()
    for network in networks:
        for variable in _leaves(network, nnx):
            value = variable.get_value()
            name = str(getattr(value, "dtype", ""))
            if name in LOW_DTYPES and id(variable) not in kept:
                raise ValueError(
                    f"a parameter is {name} already; "
                    "decorate a network whose parameters are float32"
                )
            if name == "float32" and id(variable) not in kept | taken:
                taken.add(id(variable))
                yield variable


def _leaves(network: Module, nnx: ModuleType) -> list[Variable]:
    state = (
        nnx.graphlib.variables
        if hasattr(nnx, "graphlib") and hasattr(nnx.graphlib, "variables")
        else nnx.variables
    )
    found: list[Variable] = jax.tree.leaves(
        state(network, nnx.Param), is_leaf=lambda v: isinstance(v, nnx.Variable)
    )
    return found


def _pairs(
    networks: Sequence[Module], optimizers: Sequence[Optimizer]
) -> list[tuple[Module, Optimizer]]:
    """Return each optimizer with the network that it steps, to which it has no reference."""
    if len(networks) != 1 and len(networks) != len(optimizers) and optimizers:
        raise NotExpressible(
            "an optimizer of nnx does not hold its network: give one network, or one for each "
            "optimizer, in order"
        )
    for optimizer in optimizers:
        if has_master_weights(optimizer):
            raise ValueError("the optimizer is decorated already")
        if int(optimizer.step.get_value()) != 0:
            raise ValueError("the optimizer has begun; decorate it before its first step")
    return [
        (networks[n if len(networks) > 1 else 0], optimizer)
        for n, optimizer in enumerate(optimizers)
    ]
