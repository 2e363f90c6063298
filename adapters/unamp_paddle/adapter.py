"""The adapter for PaddlePaddle: `unamp.adapter.Adapter`, made of the modules beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import paddle
from paddle.base.framework import _dygraph_tracer

from unamp.adapter import Decoration, Fact, Operations, Realisation, Support
from unamp.adapter.base import BaseAdapter
from unamp.adapter.layers import Layered
from unamp.adapter.open_traces import Sink
from unamp.adapter.state import ELSEWHERE
from unamp.adapter.wrapping import with_method
from unamp.errors import NotExpressible
from unamp.networks import call_under
from unamp.policy import Policy
from unamp_paddle import devices, observing, patches, plans, scaling, spellings, watching
from unamp_paddle.activation import Activation
from unamp_paddle.casting import cast
from unamp_paddle.hooks import HOOKS
from unamp_paddle.probing import probe_effects
from unamp_paddle.programs import in_program
from unamp_paddle.state import DTYPES, Tensor, TensorT, Value, thread

if TYPE_CHECKING:
    from paddle.base.framework import Variable
    from paddle.nn import Layer
    from paddle.optimizer import Optimizer


class PaddleAdapter(BaseAdapter):
    """PaddlePaddle, on the CPU and on CUDA."""

    framework = "paddle"
    thread = thread
    dtypes = DTYPES
    holds_gradients = True
    dtype_errors = r"d(ata )?type|type of data|kernel_key"

    device_names = staticmethod(devices.names)
    device_kind = staticmethod(devices.kind_of)
    how = staticmethod(plans.how)
    scale_loss = staticmethod(scaling.scale_loss)
    backward = staticmethod(scaling.backward)
    all_finite = staticmethod(scaling.all_finite)
    gradients = scaling.PaddleGradients
    report_registered = staticmethod(observing.report_registered)
    second_run = staticmethod(observing.second_run)
    unchanged = staticmethod(observing.unchanged)
    named_gradients = staticmethod(watching.named_gradients)
    numbers = staticmethod(watching.numbers)
    total = staticmethod(watching.total)
    fetched = staticmethod(watching.fetched)
    spelling = staticmethod(spellings.spelling)

    def rank(self) -> int | None:
        return int(paddle.distributed.get_rank()) if paddle.distributed.is_initialized() else None

    def probe(self) -> None:
        HOOKS.probe()
        probe_effects()

    def kernels(self, device: str, dtype: str) -> Support:
        return (
            Support.NATIVE
            if device == "gpu" and devices.accelerator() in (None, "gpu")
            else Support.EMULATED
        )

    def slowdown(self, device: str, dtype: str) -> float:
        return {"float16": 1.7, "bfloat16": 1.4}[dtype] if device == "cpu" else 1.0

    def runtime(self) -> Mapping[str, Fact]:
        """Return the build and its libraries; Paddle does not tell how many threads it uses."""
        return {
            "build": "cuda" if paddle.is_compiled_with_cuda() else "cpu",
            "mkl": paddle.version.with_mkl == "ON",
            "onednn": bool(paddle.get_flags("FLAGS_use_mkldnn")["FLAGS_use_mkldnn"]),
        }

    def prepare(self, policy: Policy, device: str | None) -> Realisation:
        if device is not None and device not in self.devices():
            return ELSEWHERE
        plan = plans.plan(policy, device)
        if plan is not None and plan.delegated and device != "gpu" and policy.level == "O3":
            raise NotExpressible("Paddle's own AMP has no level O3; use O2, or a preset with lists")
        return Activation(plan)

    def observe(self, sink: Sink, values: bool) -> AbstractContextManager[None]:
        plan = plans.Plan.without_policy(reporting=True)
        return observing.observe(sink, values, patches.patched(plan), plan)

    def is_tensor(self, value: object) -> bool:
        return isinstance(value, Tensor) or in_program(value)

    def cast(self, tensor: TensorT, dtype: str) -> TensorT:
        return cast(tensor, DTYPES[dtype])

    def dtype_of(self, tensor: Tensor | Value | Variable) -> str:
        return str(tensor.dtype).removeprefix("paddle.")

    def device_of(self, tensor: Tensor | Value | Variable) -> str:
        place = getattr(tensor, "place", None)
        if place is None:  # a value in a program: it will be where the program runs
            return self.devices()[-1]
        return devices.on(place)

    def native_policy(self, device: str) -> Policy | None:
        tracer = _dygraph_tracer()  # None in static mode
        level: Any = "O0" if tracer is None else tracer._amp_level.name
        return (
            None
            if level not in ("OD", "O1", "O2")
            else Policy(level, tracer._amp_dtype, preset="native")
        )

    def is_network(self, value: object) -> bool:
        return isinstance(value, paddle.nn.Layer)

    def wrap(self, network: Layer, policy: Policy) -> Layer:
        return with_method(
            network, "forward", partial(call_under, self, policy), partial(self.wrap, policy=policy)
        )

    def is_optimizer(self, value: object) -> bool:
        return isinstance(value, paddle.optimizer.Optimizer)

    def decorate(
        self, networks: Sequence[Layer], optimizers: Sequence[Optimizer], decoration: Decoration
    ) -> None:
        from unamp_paddle.decoration import decorate  # few programs use it

        decorate(networks, optimizers, decoration)

    def layered(self) -> Layered:
        from unamp_paddle.layers import PaddleLayers  # few programs use it

        return PaddleLayers()

    def operations(self) -> Operations:
        from unamp_paddle.conformance import PaddleOperations

        return PaddleOperations()
