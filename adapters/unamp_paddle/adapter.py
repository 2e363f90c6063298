"""unamp's adapter for PaddlePaddle: the contract of `unamp.adapter`, carried out by the modules beside this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import paddle
from paddle.base.framework import _dygraph_tracer

from unamp.adapter import CapturesNothing, Decoration, Fact, Gap, Gradients, How, Operations, OpRecord, Realisation, Support
from unamp.adapter.layers import Layered
from unamp.adapter.observer import Observer, Sink
from unamp.adapter.registered import PlanDecides
from unamp.adapter.state import ELSEWHERE
from unamp.adapter.wrapping import with_method
from unamp.errors import NotExpressible
from unamp.networks import call_under
from unamp.policy import Policy
from unamp_paddle import devices, observing, patches, plans, scaling
from unamp_paddle.activation import Activation
from unamp_paddle.casting import cast
from unamp_paddle.compiled import build_hint, exchange
from unamp_paddle.hooks import HOOKS
from unamp_paddle.probing import probe_effects
from unamp_paddle.programs import in_program
from unamp_paddle.spellings import spelling
from unamp_paddle.state import DTYPES, Tensor, thread

__all__ = ["PaddleAdapter"]


class PaddleAdapter(CapturesNothing, PlanDecides):
    """PaddlePaddle, on the CPU and on CUDA."""

    framework = "paddle"
    thread = thread
    holds_gradients = True
    dtype_errors = r"d(ata )?type|type of data|kernel_key"

    def __init__(self, requires: str) -> None:
        self.requires = requires

    def version(self) -> str:
        """Return PaddlePaddle's version."""
        return str(paddle.__version__)

    def rank(self) -> int | None:
        """Return the number that `paddle.distributed` gave this process; None where it knows of no others."""
        return int(paddle.distributed.get_rank()) if paddle.distributed.is_initialized() else None

    def probe(self) -> None:
        """Check the private hooks and their effect; see `unamp.adapter.Adapter.probe`."""
        HOOKS.probe()
        probe_effects()

    def devices(self) -> tuple[str, ...]:
        """Return the CPU, and a GPU where Paddle finds an accelerator of whatever kind (see `device_names`)."""
        return ("cpu",) if devices.accelerator() is None else ("cpu", "gpu")

    def device_names(self) -> Mapping[str, str]:
        return devices.names()

    def device_kind(self, device: object) -> str | None:
        return devices.kind_of(device)

    def support(self, device: str, dtype: str) -> Support:
        return Support.NATIVE if device == "gpu" and devices.accelerator() in (None, "gpu") else Support.EMULATED

    def slowdown(self, device: str, dtype: str) -> float:
        """Return the cost of emulation on the CPU; see `unamp.adapter.Adapter.slowdown`."""
        return {"float16": 1.7, "bfloat16": 1.4}[dtype] if device == "cpu" else 1.0

    def runtime(self) -> Mapping[str, Fact]:
        """Eager operations ask oneDNN only where a flag says so; Paddle tells of no threads."""
        return {
            "build": "cuda" if paddle.is_compiled_with_cuda() else "cpu",
            "mkl": paddle.version.with_mkl == "ON",
            "onednn": bool(paddle.get_flags("FLAGS_use_mkldnn")["FLAGS_use_mkldnn"]),
            "regions": "Python" if exchange is None else "C",
        }

    def faster(self) -> str | None:
        return build_hint()

    def gaps(self) -> tuple[Gap, ...]:
        return (
            Gap(
                "sparse tensors (paddle.sparse)",
                "rules of a level or a preset leave their functions alone; where a list asks for another dtype than theirs the "
                "call raises: on the CPU they have float32 kernels alone, and products of sparse matrices have none",
            ),
            Gap(
                "custom devices and XPU",
                "which low kernels they have, Paddle does not tell beforehand: every low operation is emulated there; no "
                "such device was there to test it, and Paddle's wheel has a loader for plugins and none to load",
            ),
            Gap(
                "decorate for embeddings with sparse gradients on the CPU",
                "Paddle has no kernel that makes low ones there, and no cast for them; such a layer stays in float32",
            ),
            Gap(
                "decorate with master_grad under paddle.DataParallel",
                "its buckets take gradients in the dtype of their parameters: the backward pass raises; leave master_grad out",
            ),
            Gap(
                "decorate in float16 with paddle.DataParallel on the CPU",
                "gloo's all_reduce of float16 numbers is infinite in Paddle 3.3: every step is skipped; use bfloat16",
            ),
            Gap(
                "GradScaler.scale inside a function that paddle.jit.to_static compiles with full_graph=True",
                "the scale of that moment would stay in the program; scale the loss outside of the function",
            ),
            Gap(
                "branches on a tensor that end in different dtypes, under paddle.jit.to_static with full_graph=True",
                "Paddle's compiler wants one dtype: cast in the branches, or use full_graph=False, which chooses in Python",
            ),
            Gap(
                "programs of the old IR (FLAGS_enable_pir_api=0, paddle.pir_utils.OldIrGuard)",
                "they append operators by name, which no region sees: opening one there raises; use PIR, Paddle's default",
            ),
            Gap(
                "decorate and GradScaler.scale in programs built by hand (paddle.enable_static)",
                "both raise: parameters have no numbers there, and the scale would be a constant; Paddle's own scaler works",
            ),
            Gap(
                "programs that were built, traced or loaded outside of a region (paddle.static.Program, paddle.jit.load)",
                "they are finished, under the policy in which they were built: a region around Executor.run changes nothing",
            ),
        )

    def prepare(self, policy: Policy, device: str | None) -> Realisation:
        if device is not None and device not in self.devices():
            return ELSEWHERE
        plan = plans.plan(policy, device)
        if plan is not None and plan.delegated and device != "gpu" and policy.level == "O3":
            raise NotExpressible("Paddle's own AMP has no level O3; use O2, or a preset with lists")
        return Activation(plan)

    def how(self, op: str, policy: Policy, device: str) -> How:
        return plans.how(op, policy, device)

    def observe(self, sink: Sink, values: bool) -> AbstractContextManager[None]:
        plan = plans.without_policy(reporting=True)

        def unchanging() -> plans.Plan:
            patches.acquire(plan)
            return plan

        return observing.observe(sink, values, unchanging, patches.release)

    def is_tensor(self, value: object) -> bool:
        return isinstance(value, Tensor) or in_program(value)

    def cast(self, tensor: Any, dtype: str) -> Any:
        return cast(tensor, DTYPES[dtype])

    def dtype_of(self, tensor: Any) -> str:
        return str(tensor.dtype).removeprefix("paddle.")

    def device_of(self, tensor: Any) -> str:
        place = getattr(tensor, "place", None)
        if place is None:  # a value in a program: it will be where the program runs
            return self.devices()[-1]
        return devices.on(place)

    def native_policy(self, device: str) -> Policy | None:
        tracer = _dygraph_tracer()  # None in static mode
        level: Any = "O0" if tracer is None else tracer._amp_level.name
        return None if level not in ("OD", "O1", "O2") else Policy(level, tracer._amp_dtype, preset="native")

    def is_network(self, value: object) -> bool:
        return isinstance(value, paddle.nn.Layer)

    def wrap(self, network: Any, policy: Policy) -> Any:
        return with_method(network, "forward", partial(call_under, self, policy), partial(self.wrap, policy=policy))

    def is_optimizer(self, value: object) -> bool:
        return isinstance(value, paddle.optimizer.Optimizer)

    def scale_loss(self, loss: Any, scale: float) -> Any:
        return scaling.scale_loss(loss, scale)

    def backward(self, compute: Callable[[], tuple[Any, Any]], network: Any, optimizer: Any) -> tuple[Any, Any]:
        return scaling.backward(compute, optimizer)

    def all_finite(self, tensors: Sequence[Any]) -> Any:
        return scaling.all_finite(tensors)

    def gradients(self, optimizer: Any, given: Any) -> Gradients:
        return scaling.PaddleGradients(optimizer, given)

    def decorate(self, networks: Sequence[Any], optimizers: Sequence[Any], decoration: Decoration) -> None:
        from unamp_paddle.decoration import decorate  # few programs use it

        decorate(networks, optimizers, decoration)

    def layered(self) -> Layered:
        from unamp_paddle.layers import PaddleLayers  # few programs use it

        return PaddleLayers()

    def made_by(self, tensor: Any) -> Iterator[str]:
        """Give nothing: what a tensor came from is not known."""
        return iter(())

    def report_registered(self, observer: Observer, record: OpRecord, tensors: Sequence[Any], result: Any) -> None:
        observing.report_registered(observer, record, tensors, result)

    def spelling(self, value: object) -> str | None:
        return spelling(value)

    def operations(self) -> Operations:
        from unamp_paddle.conformance import PaddleOperations

        return PaddleOperations()
