"""PyTorch's words and objects for devices, and the dtypes that a CPU has instructions for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache

import torch

from unamp_torch.state import CUDA, dispatch_key, without_kernels

#: The operators that ask oneDNN for instructions of this CPU.
_HAS_INSTRUCTIONS = {
    "float16": "_is_mkldnn_fp16_supported",
    "bfloat16": "_is_mkldnn_bf16_supported",
}

#: The name of the device type for backends from outside PyTorch, until one is registered.
_UNNAMED = "privateuseone"


@cache
def has_instructions(dtype: str) -> bool | None:
    """Return whether oneDNN finds CPU instructions for a dtype; None where it cannot be asked."""
    ask = getattr(torch.ops.mkldnn, _HAS_INSTRUCTIONS[dtype], None)
    if ask is None:
        return None
    with without_kernels(dispatch_key("Tracer")):  # `torch.jit.trace` cannot record the question
        return bool(ask())


def accelerator() -> str | None:
    """Return the device type of the accelerator that PyTorch finds; None where there is none.

    ``"cuda"`` is ROCm's too; others are ``"mps"``, ``"xpu"``, and the name of any backend from
    outside PyTorch.
    """
    if torch.cuda.is_available():
        return CUDA
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return None if found is None else found.type


def registered_since(known: Collection[str]) -> bool:
    """Return whether a backend from outside PyTorch brought an accelerator that is not known."""
    if torch._C._get_privateuse1_backend_name() == _UNNAMED:
        return False
    found = accelerator()
    return found is not None and found not in known


def device_type(kind: str) -> str:
    """Return PyTorch's device type for a kind of device; ``"gpu"`` is any accelerator there is."""
    return (accelerator() or CUDA) if kind == "gpu" else kind


def _kind(device_type: str) -> str:
    """Return the kind of device that a device type is."""
    return "gpu" if device_type in (CUDA, accelerator()) else device_type


def names() -> Mapping[str, str]:
    """Return PyTorch's word for every device that a region can cover here, by its kind."""
    found = accelerator()
    return {"cpu": "cpu", **({} if found is None else {"gpu": found}), "meta": "meta"}


def kind_of(device: object) -> str | None:
    """Return the kind of a `torch.device`, or of the string for one; None where it is neither."""
    if isinstance(device, str):
        try:
            device = torch.device(device)
        except RuntimeError:
            return None
    return _kind(device.type) if isinstance(device, torch.device) else None


def on(tensor: torch.Tensor) -> str:
    """Return the kind of device that a tensor is on."""
    return _kind(tensor.device.type)
