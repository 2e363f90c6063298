"""unamp's adapter for PyTorch: the contract of `unamp.adapter`, carried out by the modules beside this one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from unamp.adapter import Gap, How, OpRecord, Operations, Realisation, Support
from unamp.errors import FrameworkNotSupported
from unamp.policy import Policy
from unamp.regions import Region
from unamp_torch import compiling, hooks, observing, plans
from unamp_torch.activation import Activation
from unamp_torch.casting import cast
from unamp_torch.state import DTYPES

__all__ = ["TorchAdapter"]


class TorchAdapter:
    """PyTorch, on the CPU and on CUDA."""

    framework = "torch"
    requires = ">=2.6,<3"

    def version(self) -> str:
        """PyTorch's version, with its build."""
        return str(torch.__version__)

    def probe(self) -> None:
        """Check the version and the private hooks; see `unamp.adapter.Adapter.probe`."""
        hooks.probe()

    def devices(self) -> tuple[str, ...]:
        """The CPU, and a GPU where CUDA finds one."""
        return ("cpu", "gpu") if torch.cuda.is_available() else ("cpu",)

    def support(self, device: str, dtype: str) -> Support:
        return Support.NATIVE

    def gaps(self) -> tuple[Gap, ...]:
        return ()

    def prepare(self, policy: Policy, device: str | None) -> Realisation:
        return Activation(plans.plan(policy, device))

    def how(self, op: str, policy: Policy, device: str) -> How:
        return plans.how(op, policy, device)

    def observe(self, sink: Callable[[OpRecord], None]) -> AbstractContextManager[None]:
        plans.install_all()
        return observing.observe(sink)

    def is_tensor(self, value: object) -> bool:
        return isinstance(value, torch.Tensor)

    def cast(self, tensor: Any, dtype: str) -> Any:
        return cast(tensor, DTYPES[dtype])

    def dtype_of(self, tensor: Any) -> str:
        return str(tensor.dtype).removeprefix("torch.")

    def spelling(self, value: object) -> str | None:
        return None

    def compiling(self) -> bool:
        return torch.compiler.is_compiling()

    def make_capturable(self, region: Region) -> int:
        return compiling.make_capturable(region)

    def enter_captured(self, key: int) -> None:
        compiling.enter(key)

    def leave_captured(self, key: int) -> None:
        compiling.leave(key)

    def operations(self) -> Operations:
        from unamp_torch.operations import TorchOperations

        return TorchOperations()
