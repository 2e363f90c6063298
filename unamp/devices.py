"""The words for devices: everybody's own, and those of the frameworks that are imported."""

from __future__ import annotations

from unamp.adapter import DEVICES, Adapter, NamesDevices, registry
from unamp.errors import shortened

__all__ = ["BARE", "default_dtype", "place"]

#: What is said where a function stands in the place of a device or a switch: the parentheses are missing.
BARE = "{0} is called before it decorates: write @unamp.{0}() above the function"


def place(device_type: object, framework: str | None) -> tuple[str | None, str | None]:
    """Return the kind of device that is meant, and the framework whose word that is; None for what every framework may have."""
    if device_type is None or device_type in DEVICES:
        return device_type, None
    if isinstance(device_type, str):
        word, _, index = device_type.partition(":")
        word = "gpu" if word == "cuda" else word
        if word in DEVICES and (index.isdigit() or word == device_type or device_type == "cuda"):
            return word, None
    adapters = [a for a in registry.adapters_in_use() if framework in (None, a.framework)]
    absent: ValueError | None = None
    for adapter in adapters:
        try:
            kind = adapter.device_kind(device_type) if isinstance(adapter, NamesDevices) else None
        except ValueError as error:  # it has none, but another framework may have one of the same name
            absent = absent or error
            continue
        if kind is not None:
            return kind, None if kind in DEVICES else adapter.framework
    if absent is not None:
        raise absent
    named = {a.framework: ", ".join(a.device_names().values()) for a in adapters if isinstance(a, NamesDevices)}
    valid = "valid: 'cpu', 'gpu', 'cuda', or None for wherever the tensors are"
    valid += "".join(f"; {framework} has {devices}" for framework, devices in named.items())
    if owner := next((a.framework for a in registry.adapters_in_use() if a not in adapters and _knows(a, device_type)), None):
        raise ValueError(
            f"device_type {shortened(device_type)} is one of {owner}'s devices, and the region is for {framework}; {valid}"
        )
    if not isinstance(device_type, str):
        if callable(device_type):
            raise TypeError(BARE.format("autocast"))
        raise TypeError(
            "device_type must be a string, an imported framework's object for a device, or None, "
            f"not {type(device_type).__name__}; {valid}"
        )
    raise ValueError(f"unknown device_type {shortened(device_type)}; {valid}")


def _knows(adapter: Adapter, device: object) -> bool:
    """Return whether a word or an object is a device of a framework's, there or not."""
    try:
        return isinstance(adapter, NamesDevices) and adapter.device_kind(device) is not None
    except ValueError:
        return True


def default_dtype(device: str | None, framework: str | None) -> str:
    """Return the low precision where none is named: float16 on an accelerator, bfloat16 on the CPU."""
    if device is None:
        chosen = (a for a in registry.adapters_in_use() if framework in (None, a.framework))
        device = "gpu" if any("gpu" in a.devices() for a in chosen) else "cpu"
    return "float16" if device == "gpu" else "bfloat16"
