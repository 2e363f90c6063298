"""The adapter for JAX: the contract of `unamp.adapter`, carried out by the modules beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import NoReturn

import jax

from unamp.adapter import Fact, Operations, Realisation
from unamp.adapter.base import BaseAdapter
from unamp.adapter.layers import LateNetwork, Layered
from unamp.adapter.open_traces import Sink
from unamp.adapter.state import ELSEWHERE
from unamp.errors import NotExpressible
from unamp.policy import Policy
from unamp_jax import (
    casting,
    decoration,
    devices,
    networks,
    observing,
    patches,
    plans,
    probing,
    scaling,
    spellings,
    watching,
)
from unamp_jax.activation import Activation
from unamp_jax.state import CONTEXT, DTYPES, Plan, thread


class JaxAdapter(BaseAdapter):
    """JAX, with flax, equinox, haiku, optax and, where it computes with JAX, Keras."""

    framework = "jax"
    thread = thread
    holds_gradients = False

    device_names = staticmethod(devices.names)
    device_kind = staticmethod(devices.kind_of)
    device_of = staticmethod(devices.on)
    how = staticmethod(plans.how)
    is_tensor = staticmethod(casting.is_tensor)
    dtype_of = staticmethod(casting.dtype_of)
    is_network = staticmethod(networks.is_network)
    wrap = networks.wrap
    is_optimizer = staticmethod(scaling.is_optimizer)
    scale_loss = staticmethod(scaling.scale_loss)
    all_finite = staticmethod(scaling.all_finite)
    gradients = scaling.JaxGradients
    decorate = staticmethod(decoration.decorate)
    report_registered = staticmethod(observing.report_registered)
    second_run = staticmethod(observing.second_run)
    opened = staticmethod(observing.opened)
    unchanged = staticmethod(observing.unchanged)
    named_gradients = staticmethod(watching.named_gradients)
    numbers = staticmethod(watching.numbers)
    total = staticmethod(watching.total)
    fetched = staticmethod(watching.fetched)
    spelling = staticmethod(spellings.spelling)

    def rank(self) -> int | None:
        return int(jax.process_index()) if jax.distributed.is_initialized() else None

    def probe(self) -> None:
        patches.probe()
        probing.probe_effects()

    def runtime(self) -> Mapping[str, Fact]:
        """Return the facts about JAX; the CPU's kernels use as many threads as the process may."""
        return {
            "build": jax.default_backend(),
            "jaxlib": jax.lib.__version__,
            "threads": len(os.sched_getaffinity(0)),
        }

    def prepare(self, policy: Policy, device: str | None) -> Realisation:
        if device is not None and device not in self.devices():
            return ELSEWHERE
        return Activation(policy)

    def observe(self, sink: Sink, values: bool) -> AbstractContextManager[None]:
        layers = patches.layer_patches(spellings.libraries())
        return observing.observe(
            sink,
            values,
            networks.named_layers,
            layers,
            patches.patched(),
            Plan.without_policy(reporting=True),
        )

    def cast(self, tensor: jax.Array, dtype: str) -> jax.Array:
        with CONTEXT(None):
            return casting.cast(tensor, DTYPES[dtype])

    def backward(
        self, compute: Callable[[], tuple[jax.Array, jax.Array]], network: object, optimizer: object
    ) -> NoReturn:
        raise NotExpressible(
            "JAX differentiates functions of their arguments, and a loss that closes over its "
            "network has no gradient; take jax.grad or nnx.grad of a function of the parameters, "
            "and hand its gradients to step(gradients=...)"
        )

    def layered(self) -> Layered:
        from unamp_jax.layers import JaxLayers  # few programs use it

        return JaxLayers()

    def late_network(self, value: object) -> LateNetwork | None:
        from unamp_jax.scope_rules import function_of

        return function_of(value)

    def operations(self) -> Operations:
        from unamp_jax.conformance import JaxOperations

        return JaxOperations()
