"""Paddle's words and objects for devices.

Words are ``"gpu:0"``, ``"xpu"``, a custom device's type; an object is `paddle.CPUPlace()`.

On custom devices and XPU low is always emulated: Paddle does not say beforehand which low kernels a
plugin has.
"""

from __future__ import annotations

from collections.abc import Mapping

import paddle
from paddle.base import core


def accelerator() -> str | None:
    """Return the word for the accelerator here: ``"gpu"``, ``"xpu"``, a plugin's type, or None."""
    if core.is_compiled_with_cuda() and paddle.device.cuda.device_count() > 0:
        return "gpu"
    if core.is_compiled_with_xpu() and getattr(core, "get_xpu_device_count", int)() > 0:
        # Only a build for XPU has the function that counts them.
        return "xpu"
    return next(iter(paddle.device.get_all_custom_device_type() or ()), None)


def names() -> Mapping[str, str]:
    """Return Paddle's word for every device of this machine, by the device's kind."""
    found = accelerator()
    return {"cpu": "cpu", **({} if found is None else {"gpu": found})}


def kind_of(device: object) -> str | None:
    """Return the kind of a place or of a word for one; None for anything else.

    For a device that this machine lacks, return the word itself.
    """
    word = _word(device)
    return next((kind for kind, name in names().items() if name == word), word)


def _word(device: object) -> str | None:
    """Return Paddle's word for a device; None for anything else."""
    if isinstance(device, core.Place):
        # `Place(gpu:0)`, or `Place(gpu_pinned)`, which is memory of the CPU
        word = str(device).removeprefix("Place(").rstrip(")").partition(":")[0]
        return "cpu" if word in ("undefined", "gpu_pinned", "xpu_pinned") else word
    if not isinstance(device, str):
        return None
    word, _, index = device.partition(":")
    known = {"cpu", "gpu", "xpu", "ipu", *(paddle.device.get_all_custom_device_type() or ())}
    return word if word in known and (index.isdigit() or not index) else None


def on(place: core.Place) -> str:
    """Return the kind of device of a tensor's place."""
    word = _word(place)
    return "cpu" if word in (None, "cpu") else "gpu"
