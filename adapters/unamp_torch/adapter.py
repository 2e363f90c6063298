"""The contract of `unamp.adapter` for PyTorch, carried out by the modules beside this one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

from unamp.adapter import Decoration, Fact, Gradients, Operations, Realisation, Support
from unamp.adapter.base import BaseAdapter
from unamp.adapter.layers import Layered
from unamp.adapter.open_traces import Sink
from unamp.adapter.wrapping import with_method
from unamp.networks import call_under
from unamp.policy import Policy
from unamp_torch import (
    compiling,
    containers,
    devices,
    keras,
    observing,
    patches,
    plans,
    probing,
    scaling,
    shadowing,
    spellings,
    state,
    watching,
)
from unamp_torch.activation import activation
from unamp_torch.compiled import build_hint, in_wheel, library
from unamp_torch.state import CPU, CUDA, autocast_key, dtype_name, excluded, thread

#: How many times slower than float32 a dtype is on a CPU without instructions for it.
_WITHOUT_INSTRUCTIONS = {"float16": 28.0, "bfloat16": 22.0}

#: The patches of an open region, for traces: with them layers of Keras report themselves.
_AS_IN_A_REGION = patches.kept_for_keras()


class TorchAdapter(BaseAdapter):
    """PyTorch, on the CPU and on CUDA."""

    framework = "torch"
    thread = thread
    dtypes = state.DTYPES
    holds_gradients = True
    dtype_errors = (
        "dtype|scalar ?type|ScalarType|same type|type .* should be the same|"
        "not implemented for '|can't be cast|cannot be converted to type|c10::"
    )

    # names were probed when this package was imported
    probe = staticmethod(probing.probe_effects)
    device_names = staticmethod(devices.names)
    device_kind = staticmethod(devices.kind_of)
    device_of = staticmethod(devices.on)
    how = staticmethod(plans.how)
    scale_loss = staticmethod(scaling.scale_loss)
    all_finite = staticmethod(scaling.all_finite)
    report_registered = staticmethod(observing.report_registered)
    second_run = staticmethod(shadowing.second_run)
    unchanged = staticmethod(shadowing.unchanged)
    opened = staticmethod(containers.opened)
    operators_changed = staticmethod(plans.forget)
    named_gradients = staticmethod(watching.named_gradients)
    numbers = staticmethod(watching.numbers)
    total = staticmethod(watching.total)
    fetched = staticmethod(watching.fetched)
    spelling = staticmethod(spellings.spelling)
    made_by = staticmethod(spellings.made_by)
    called_as_it_is = staticmethod(compiling.call_while_tracing)
    make_capturable = staticmethod(patches.make_capturable)
    enter_captured = staticmethod(compiling.enter)
    leave_captured = staticmethod(compiling.leave)
    compiling = staticmethod(compiling.compiling)  # called for every region that is made

    def rank(self) -> int | None:
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return None
        return torch.distributed.get_rank()

    def kernels(self, device: str, dtype: str) -> Support:
        """Return the support for a dtype: NATIVE, but where CUDA emulates it, or there is no GPU.

        On other devices than CUDA, single operators are emulated.
        """
        found = CPU if device == "cpu" else devices.accelerator()
        if found is None:
            return Support.UNSUPPORTED
        emulated = (
            found == CUDA
            and dtype == "bfloat16"
            and not torch.cuda.is_bf16_supported(including_emulation=False)
        )
        return Support.EMULATED if emulated else Support.NATIVE

    def slowdown(self, device: str, dtype: str) -> float:
        """Return 1 where oneDNN uses CPU instructions for the dtype; else a fallback's slowdown."""
        return (
            _WITHOUT_INSTRUCTIONS[dtype]
            if device == "cpu" and devices.has_instructions(dtype) is False
            else 1.0
        )

    def runtime(self) -> Mapping[str, Fact]:
        """Return the facts about PyTorch's instructions and this adapter's kernels.

        ``capability`` is of PyTorch's own loops, ``onednn_...`` of oneDNN; ``kernels`` is the
        language of this adapter's kernels. ``kernels_in_wheel`` names the versions of PyTorch for
        which an installed wheel brings kernels.
        """
        asked = {dtype: devices.has_instructions(dtype) for dtype in _WITHOUT_INSTRUCTIONS}
        return {
            "build": f"cuda {torch.version.cuda}" if torch.version.cuda else "cpu",
            "capability": torch.backends.cpu.get_cpu_capability(),
            "kernels": "Python" if library is None else "C++",
            **({} if in_wheel() is None else {"kernels_in_wheel": str(in_wheel())}),
            "mkl": torch.backends.mkl.is_available(),
            "onednn": torch.backends.mkldnn.is_available(),
            **{f"onednn_{dtype}": answer for dtype, answer in asked.items() if answer is not None},
            "threads": torch.get_num_threads(),
        }

    def faster(self) -> str | None:
        return build_hint(on_gpu=devices.accelerator() is not None)

    def prepare(self, policy: Policy, device: str | None) -> Realisation:
        return activation(plans.plan(policy, device))

    def observe(self, sink: Sink, values: bool) -> AbstractContextManager[None]:
        plans.install_all()
        if thread.plan is not None:
            plans.install_traced(thread.plan)
        needed = (_AS_IN_A_REGION, keras.tracing_patches()) if keras.in_use() else ()
        return observing.observe(sink, values, needed)

    def is_tensor(self, value: object) -> bool:
        return isinstance(value, torch.Tensor)

    def cast(self, tensor: torch.Tensor, dtype: str) -> torch.Tensor:
        return tensor.to(getattr(torch, dtype))

    def dtype_of(self, tensor: torch.Tensor) -> str:
        return dtype_name(tensor.dtype)

    def native_policy(self, device: str) -> Policy | None:
        kind = devices.device_type(device)
        plan = thread.plan
        if (
            (plan is not None and kind in plan.devices)
            or autocast_key(kind) is None
            or not torch.is_autocast_enabled(kind)
        ):
            return None
        return Policy("O1", dtype_name(torch.get_autocast_dtype(kind)), preset="native")

    def is_network(self, value: object) -> bool:
        return isinstance(value, torch.nn.Module)

    def wrap(self, network: torch.nn.Module, policy: Policy) -> Any:
        return with_method(
            network, "forward", partial(call_under, self, policy), partial(self.wrap, policy=policy)
        )

    def is_optimizer(self, value: object) -> bool:
        return isinstance(value, torch.optim.Optimizer) or keras.is_optimizer(value)

    def backward(
        self,
        compute: Callable[[], tuple[torch.Tensor, torch.Tensor]],
        network: torch.nn.Module,
        optimizer: Any,
    ) -> tuple[torch.Tensor, None]:
        of_keras = not isinstance(optimizer, torch.optim.Optimizer)
        (network if of_keras else optimizer).zero_grad()
        scaled, loss = compute()
        if of_keras and not optimizer.built:
            optimizer.build(network.trainable_variables)
        scaled.backward()
        return loss.detach(), None

    def gradients(
        self, optimizer: object, given: Iterable[torch.Tensor | None] | None
    ) -> Gradients:
        if not isinstance(optimizer, torch.optim.Optimizer):
            return keras.KerasGradients(optimizer, given)
        return scaling.TorchGradients(optimizer, given)

    def decorate(
        self,
        networks: Sequence[torch.nn.Module],
        optimizers: Sequence[Any],
        decoration: Decoration,
    ) -> None:
        from unamp_torch.decoration import decorate  # few programs use it

        decorate(networks, optimizers, decoration)

    def layered(self) -> Layered:
        from unamp_torch.layers import TorchLayers  # few programs use it

        return TorchLayers()

    def policy_for(self, tensor: torch.Tensor) -> Policy | None:
        device = tensor.device.type
        key = autocast_key(device)
        if key is not None and excluded(key):
            # in an operation, or switched off by PyTorch's own means
            return None
        return None if thread.plan is None else thread.plan.policy_on(device)

    def operations(self) -> Operations:
        from unamp_torch.conformance import TorchOperations

        return TorchOperations()
