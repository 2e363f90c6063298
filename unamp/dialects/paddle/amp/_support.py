"""`paddle.amp.is_float16_supported` and `is_bfloat16_supported`."""

from __future__ import annotations

from unamp.adapter import DEVICES, Support, registry
from unamp.dialects._in_use import framework_in_use, has_gpu


def is_float16_supported(device: str | None = None) -> bool:
    """Return whether a device computes in float16 natively; otherwise a region emulates it.

    Where Paddle is imported, the answer is Paddle's.

    Args:
        device: ``"cpu"``, ``"gpu"`` or ``"gpu:1"``; None is a GPU where there is one, else the CPU.

    Raises:
        ValueError: for any other device.
    """
    return _supported(device, "float16")


def is_bfloat16_supported(device: str | None = None) -> bool:
    """Return whether a device computes in bfloat16 natively; see `is_float16_supported`."""
    return _supported(device, "bfloat16")


def _supported(device: str | None, dtype: str) -> bool:
    paddle = framework_in_use("paddle")
    if paddle is not None:
        return bool(getattr(paddle.amp, f"is_{dtype}_supported")(device))
    kind = ("gpu" if has_gpu() else "cpu") if device is None else str(device).partition(":")[0]
    if kind not in DEVICES:
        raise ValueError(f"The device should be 'cpu', 'gpu' or 'gpu:x', not {device!r}")
    in_use = [adapter for adapter in registry.adapters_in_use() if kind in adapter.devices()]
    return any(adapter.support(kind, dtype) is Support.NATIVE for adapter in in_use)
