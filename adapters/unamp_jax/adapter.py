"""The adapter for JAX: the contract of `unamp.adapter`, carried out by the modules beside this one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax

from unamp.adapter import CapturesNothing, Decoration, Fact, Gap, Gradients, How, Operations, OpRecord, Realisation, Support
from unamp.adapter.layers import Layered
from unamp.adapter.observer import Observer, Sink
from unamp.adapter.registered import PlanDecides
from unamp.adapter.state import ELSEWHERE
from unamp.errors import NotExpressible
from unamp.policy import Policy
from unamp_jax import casting, devices, networks, observing, patches, plans, probing, scaling
from unamp_jax.activation import Activation
from unamp_jax.decoration import decorate
from unamp_jax.spellings import libraries, spelling
from unamp_jax.state import CONTEXT, DTYPES, Plan, thread

__all__ = ["JaxAdapter"]

GAPS = (
    Gap(
        "programs that were compiled or exported outside (jax.stages.Compiled, jax.export.Exported, a jaxpr)",
        "they are finished; a region does not change them",
    ),
    Gap("the inside of a Pallas kernel, of ffi_call and of callbacks", "they are left alone"),
    Gap(
        "a region limited to the CPU on a machine with a GPU, or the other way round",
        "where a traced function runs is decided later, so such a region covers both",
    ),
    Gap(
        "casting a float32 parameter once (cache)",
        "the compiler merges equal casts of one program; outside jax.jit every use casts",
    ),
    Gap(
        "unamp.GradScaler with an optax transformation, and GradScaler.scale inside jax.jit",
        "an optax step returns the parameters and the state, and a compiled program would keep the scale of that moment; "
        "unamp_jax.loss_scaling has the same arithmetic as pure functions, inside jax.jit and outside",
    ),
    Gap(
        "unamp.decorate of what is no flax.nnx module",
        "parameters of linen and equinox are values: unamp_jax.low_parameters returns low ones, and "
        "unamp_jax.with_master_weights wraps an optax transformation",
    ),
    Gap("master_grad and save_dtype", "gradients and parameters are values, which can be cast where they are made or saved"),
    Gap(
        "the training cell of mindspore.amp (build_train_network)",
        "JAX differentiates functions of their arguments, and a loss that closes over its network has no gradient",
    ),
    Gap("the preset 'native'", "JAX has no AMP of its own"),
    Gap(
        "jax.lax.cond with the operands between its functions, a form of old",
        "its branches are not made to agree in their dtypes; JAX raises where they differ",
    ),
    Gap(
        "rules for layers of haiku, of other libraries of modules, and of functions with jax.named_scope",
        "layer_policies takes networks of flax, equinox and Keras",
    ),
    Gap(
        "rules for layers of a network that are called from outside of its own call",
        "networks are values: a layer's name is known inside the call of its network alone, and there the rule is followed",
    ),
    Gap(
        "rules for layers that are alike, and handed to a transformation inside their network's call",
        "it makes copies, which nobody can tell apart; different rules for them raise NotExpressible",
    ),
    Gap("patterns with a class for layers of flax.linen", "a module of linen has no layers before it is called; name them"),
    Gap("trace(shadow=)", "no operation is computed a second time"),
    Gap("values of operations inside jax.vmap, in a trace", "there are as many as the batch has members"),
)  # fmt: skip


class JaxAdapter(CapturesNothing, PlanDecides):
    """JAX, with flax, equinox, optax and, where it computes with JAX, Keras.

    Args:
        requires: the versions of JAX that it works with.
    """

    framework = "jax"
    thread = thread
    holds_gradients = False

    def __init__(self, requires: str) -> None:
        self.requires = requires

    def version(self) -> str:
        """Return JAX's version."""
        return str(jax.__version__)

    def rank(self) -> int | None:
        """Return the number that `jax.distributed` gave this process; None where it knows of no others."""
        return int(jax.process_index()) if jax.distributed.is_initialized() else None

    def probe(self) -> None:
        """Check the hooks, and that rules are followed; see `unamp.adapter.Adapter.probe`."""
        patches.probe()
        probing.probe_effects()

    def devices(self) -> tuple[str, ...]:
        """Return the CPU, and an accelerator where JAX computes on one by default."""
        return tuple(devices.names())

    def device_names(self) -> Mapping[str, str]:
        return devices.names()

    def device_kind(self, device: object) -> str | None:
        return devices.kind_of(device)

    def support(self, device: str, dtype: str) -> Support:
        """Return native support: XLA has every dtype on every device; single operations without a kernel are emulated."""
        return Support.NATIVE if device in self.devices() else Support.UNSUPPORTED

    def slowdown(self, device: str, dtype: str) -> float:
        return 1.0

    def runtime(self) -> Mapping[str, Fact]:
        """The threads of the CPU's kernels are as many as the process may use."""
        return {"build": jax.default_backend(), "jaxlib": jax.lib.__version__, "threads": len(os.sched_getaffinity(0))}

    def gaps(self) -> tuple[Gap, ...]:
        return GAPS

    def prepare(self, policy: Policy, device: str | None) -> Realisation:
        if device is not None and device not in self.devices():
            return ELSEWHERE
        return Activation(policy)

    def how(self, op: str, policy: Policy, device: str) -> How:
        return plans.how(op, policy, device)

    def observe(self, sink: Sink, values: bool) -> AbstractContextManager[None]:
        def acquire() -> Plan:
            patches.acquire()
            return plans.without_policy()

        def layers() -> Any:
            return patches.layer_patches(libraries())

        return observing.observe(sink, values, layers, networks.named_layers, acquire, patches.release)

    def is_tensor(self, value: object) -> bool:
        return casting.is_tensor(value)

    def cast(self, tensor: Any, dtype: str) -> Any:
        with CONTEXT(None):
            return casting.cast(tensor, DTYPES[dtype])

    def dtype_of(self, tensor: Any) -> str:
        return casting.dtype_of(tensor)

    def device_of(self, tensor: Any) -> str:
        """Return the device of an array; a tracer is on the default device."""
        return devices.on(tensor)

    def native_policy(self, device: str) -> Policy | None:
        """Return None: JAX has no AMP of its own."""
        return None

    def is_network(self, value: object) -> bool:
        """Return whether a value is a module of flax's or equinox's, a model of Keras's, or a function."""
        return networks.is_network(value)

    def wrap(self, network: Any, policy: Policy) -> Any:
        """Return a network that computes under a policy, floating results in float32, parameters as they are."""
        return networks.wrap(self, network, policy)

    def is_optimizer(self, value: object) -> bool:
        return scaling.is_optimizer(value)

    def scale_loss(self, loss: Any, scale: float) -> Any:
        with CONTEXT(None):
            return scaling.scale_loss(loss, scale)

    def backward(self, compute: Callable[[], tuple[Any, Any]], network: Any, optimizer: Any) -> tuple[Any, Any]:
        raise NotExpressible(
            "JAX differentiates functions of their arguments, and a loss that closes over its network has no gradient; "
            "take jax.grad or nnx.grad of a function of the parameters, and hand its gradients to step(gradients=...)"
        )

    def all_finite(self, tensors: Sequence[Any]) -> Any:
        with CONTEXT(None):
            return scaling.all_finite(tensors)

    def gradients(self, optimizer: Any, given: Any) -> Gradients:
        return scaling.JaxGradients(optimizer, given)

    def decorate(self, networks: Sequence[Any], optimizers: Sequence[Any], decoration: Decoration) -> None:
        decorate(networks, optimizers, decoration)

    def report_registered(self, observer: Observer, record: OpRecord, tensors: Sequence[Any], result: Any) -> None:
        observing.report_registered(observer, record, tensors, result)

    def layered(self) -> Layered:
        from unamp_jax.layer_rules import JaxLayers  # few programs use it

        return JaxLayers()

    def spelling(self, value: object) -> str | None:
        return spelling(value)

    def operations(self) -> Operations:
        from unamp_jax.conformance import JaxOperations

        return JaxOperations()
