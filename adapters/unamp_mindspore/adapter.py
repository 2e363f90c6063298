"""The adapter for MindSpore: `unamp.adapter.Adapter`, made of the modules beside it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

import mindspore
import numpy as np
from mindspore import nn
from mindspore.communication import get_group_size, get_rank

from unamp.adapter import Fact, Operations, Realisation, Support, major_minor
from unamp.adapter.base import BaseAdapter
from unamp.adapter.layers import Layered
from unamp.adapter.open_traces import Sink
from unamp.adapter.state import ELSEWHERE
from unamp.policy import Policy
from unamp_mindspore import (
    decoration,
    devices,
    networks,
    observing,
    patches,
    plans,
    scaling,
    spellings,
    watching,
)
from unamp_mindspore.activation import Activation
from unamp_mindspore.casting import cast
from unamp_mindspore.probing import probe_effects
from unamp_mindspore.state import DTYPES, Tensor, thread
from unamp_mindspore.state import device as device_in_use


class MindSporeAdapter(BaseAdapter):
    """MindSpore, in PyNative and graph mode, on the CPU."""

    framework = "mindspore"
    thread = thread
    dtypes = DTYPES
    holds_gradients = False
    dtype_errors = r"d(ata )?type|input type must be same|but got .*Float|type of .* must be"

    probe = staticmethod(patches.install)  # the hooks were checked before they were imported
    device_names = staticmethod(devices.names)
    device_kind = staticmethod(devices.kind_of)
    how = staticmethod(plans.how)
    wrap = networks.wrap
    scale_loss = staticmethod(scaling.scale_loss)
    backward = staticmethod(scaling.backward)
    all_finite = staticmethod(scaling.all_finite)
    gradients = scaling.MindSporeGradients
    decorate = staticmethod(decoration.decorate)
    report_registered = staticmethod(observing.report_registered)
    second_run = staticmethod(observing.second_run)
    unchanged = staticmethod(observing.unchanged)
    named_gradients = staticmethod(watching.named_gradients)
    numbers = staticmethod(watching.numbers)
    total = staticmethod(watching.total)
    fetched = staticmethod(watching.fetched)
    spelling = staticmethod(spellings.spelling)

    def rank(self) -> int | None:
        return int(get_rank()) if get_group_size() > 1 else None

    def kernels(self, device: str, dtype: str) -> Support:
        return Support.EMULATED if device == "cpu" else Support.NATIVE

    def slowdown(self, device: str, dtype: str) -> float:
        return {"float16": 2.2, "bfloat16": 2.4}[dtype] if device == "cpu" else 1.0

    def runtime(self) -> Mapping[str, Fact]:
        """Return the build, the threads, and whether the build is for this version of NumPy.

        MindSpore's CPU kernels are oneDNN's and its own. It does not tell which instruction sets
        they use.
        """
        return {
            "build": device_in_use(),
            "threads": int(mindspore.get_context("runtime_num_threads")),
            # No MindSpore up to 2.10 is compiled for NumPy 2.
            "built_for_this_numpy": major_minor(np.__version__) < (2, 0),
        }

    def prepare(self, policy: Policy, device: str | None) -> Realisation:
        if device not in (None, device_in_use()):
            return ELSEWHERE
        probe_effects()
        return Activation(plans.plan(policy, device))

    def observe(self, sink: Sink, values: bool) -> AbstractContextManager[None]:
        return observing.observe(
            sink, values, patches.installed.patched(), plans.Plan.without_policy(reporting=True)
        )

    def is_tensor(self, value: object) -> bool:
        return isinstance(value, Tensor)

    def cast(self, tensor: Tensor, dtype: str) -> Tensor:
        return cast(tensor, DTYPES[dtype])

    def dtype_of(self, tensor: Tensor) -> str:
        return observing.dtype_name(tensor.dtype)

    def device_of(self, tensor: Tensor) -> str:
        return device_in_use()

    def is_network(self, value: object) -> bool:
        return isinstance(value, nn.Cell)

    def is_optimizer(self, value: object) -> bool:
        return isinstance(value, decoration.OPTIMIZERS)

    def layered(self) -> Layered:
        from unamp_mindspore.layers import MindSporeLayers  # few programs use it

        return MindSporeLayers()

    def operations(self) -> Operations:
        from unamp_mindspore.conformance import MindSporeOperations

        return MindSporeOperations()
