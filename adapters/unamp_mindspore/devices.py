"""MindSpore's words for devices: ``"CPU"``, ``"GPU"``, ``"Ascend"``, with or without an index.

MindSpore has no objects for devices. A process computes on one device, its device target.
"""

from __future__ import annotations

from collections.abc import Mapping

import mindspore

from unamp_mindspore import state

_KINDS = {"CPU": "cpu", "GPU": "gpu", "Ascend": "gpu"}


def names() -> Mapping[str, str]:
    """Return MindSpore's word for every device of this process, by the device's kind."""
    return {
        "cpu": "CPU",
        **({} if state.on_cpu() else {"gpu": str(mindspore.get_context("device_target"))}),
    }


def kind_of(device: object) -> str | None:
    """Return the kind of device that a word stands for; None for anything else.

    For a device that this process does not compute on, return the word itself.
    """
    if not isinstance(device, str):
        return None
    word, _, index = device.partition(":")
    if word not in _KINDS or not (index.isdigit() or word == device):
        return None
    return _KINDS[word] if word in names().values() else word
