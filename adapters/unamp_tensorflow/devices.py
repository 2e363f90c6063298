"""TensorFlow's words and objects for devices."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf
from tensorflow.python.eager.context import PhysicalDevice

#: The types of devices that a region can be limited to, with their kinds; the first accelerator
#: that is there counts.
_KINDS = {"CPU": "cpu", "GPU": "gpu", "TPU": "gpu"}


def names() -> Mapping[str, str]:
    """Return TensorFlow's word for every device of this machine, by the device's kind."""
    # Not the logical devices: listing them makes them, and they can no longer be configured then.
    present = {device.device_type for device in tf.config.list_physical_devices()}
    return {kind: word for word, kind in reversed(_KINDS.items()) if word in present}


def kind_of(device: object) -> str | None:
    """Return the kind of a device; None for anything else.

    A device is ``"GPU:0"``, ``"/device:CPU:1"``, a `tf.DeviceSpec`, a physical or a logical device.
    For one that this machine lacks, return its type.
    """
    word = _type_of(device)
    return next((kind for kind, name in names().items() if name == word), word)


def _type_of(device: object) -> str | None:
    """Return a device's type, as ``"GPU"``; None for anything else."""
    if isinstance(device, (PhysicalDevice, tf.config.LogicalDevice)):
        return str(device.device_type)
    if isinstance(device, tf.DeviceSpec):
        return None if device.device_type is None else str(device.device_type)
    if not isinstance(device, str):
        return None
    try:
        word: str | None = tf.DeviceSpec.from_string(device).device_type
    except ValueError:
        return None
    # TensorFlow parses any word as a type of device.
    return (
        word
        if word in (*_KINDS, *(each.device_type for each in tf.config.list_physical_devices()))
        else None
    )


def on(tensor: object) -> str:
    """Return the kind of device that a tensor is on."""
    place = getattr(tensor, "device", "") or ""
    return (
        "gpu"
        if any(f":{word}:" in place for word, kind in _KINDS.items() if kind == "gpu")
        else "cpu"
    )
