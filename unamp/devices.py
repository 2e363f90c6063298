"""Names of devices: those that all frameworks share, and those of each imported framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from unamp.adapter import DEVICES, Adapter, NamesDevices, registry
from unamp.errors import shortened

#: The message for a decorator without parentheses, whose first argument is then the function.
BARE = "{0} is called before it decorates: write @unamp.{0}() above the function"


class Place(NamedTuple):
    """The devices that a word or an object stands for.

    Attributes:
        device: their kind; None is every kind.
        framework: the framework whose word it is; None for a word that all frameworks share.
        missing: where no such device is here, a sentence with those that are; else empty.
    """

    device: str | None
    framework: str | None = None
    missing: str = ""


def place(device_type: object, framework: str | None) -> Place:
    """Return the devices that a word or an object means, on one framework or all imported ones.

    Raises:
        ValueError, TypeError: for a value that is no device of those frameworks.
    """
    adapters = [a for a in registry.adapters_in_use() if framework in (None, a.framework)]
    if device_type is None or device_type == "cpu":
        return Place(device_type)
    if isinstance(device_type, str):
        word, _, index = device_type.partition(":")
        word = "gpu" if word == "cuda" else word
        if word in DEVICES and (index.isdigit() or word == device_type or device_type == "cuda"):
            return Place(word, None, _missing(device_type, word, adapters))
    absent: Place | None = None
    for adapter in adapters:
        kind = adapter.device_kind(device_type) if isinstance(adapter, NamesDevices) else None
        if kind is not None:
            anybodys = kind in DEVICES
            missing = _missing(device_type, kind, adapters if anybodys else [adapter])
            found = Place(kind, None if anybodys else adapter.framework, missing)
            if not found.missing:
                return found
            absent = absent or found  # another framework may have one of the same name
    if absent is not None:
        return absent
    valid = "valid: 'cpu', 'gpu', 'cuda', or None for wherever the tensors are"
    valid += "".join(
        f"; {_present(adapter)}" for adapter in adapters if isinstance(adapter, NamesDevices)
    )
    if owner := next(
        (
            a.framework
            for a in registry.adapters_in_use()
            if a not in adapters and _knows(a, device_type)
        ),
        None,
    ):
        raise ValueError(
            f"device_type {shortened(device_type)} is one of {owner}'s devices, "
            f"and the region is for {framework}; {valid}"
        )
    if not isinstance(device_type, str):
        if callable(device_type):
            raise TypeError(BARE.format("autocast"))
        raise TypeError(
            "device_type must be a string, an imported framework's object for a device, or None, "
            f"not {type(device_type).__name__}; {valid}"
        )
    raise ValueError(f"unknown device_type {shortened(device_type)}; {valid}")


def _missing(device_type: object, kind: str, adapters: Sequence[Adapter]) -> str:
    """Return a sentence where no framework has a kind of device here, else an empty string."""
    # Asking a framework for its devices may start it on them: ask only where none before has one.
    if not adapters or any(kind in device_words(adapter) for adapter in adapters):
        return ""
    return f"there is no device {str(device_type)!r} here: {'; '.join(map(_present, adapters))}"


def device_words(adapter: Adapter) -> Mapping[str, str]:
    """Return a framework's word for each kind of device that is here."""
    return (
        adapter.device_names()
        if isinstance(adapter, NamesDevices)
        else {kind: kind for kind in adapter.devices()}
    )


def _present(adapter: Adapter) -> str:
    return f"{adapter.framework} has {', '.join(device_words(adapter).values())}"


def _knows(adapter: Adapter, device: object) -> bool:
    """Return whether a word or an object means a device of a framework, be it here or not."""
    return isinstance(adapter, NamesDevices) and adapter.device_kind(device) is not None


def default_dtype(device: str | None, framework: str | None) -> str:
    """Return the default low precision: float16 on an accelerator, bfloat16 on the CPU."""
    if device is None:
        chosen = (a for a in registry.adapters_in_use() if framework in (None, a.framework))
        device = "gpu" if any("gpu" in a.devices() for a in chosen) else "cpu"
    return "float16" if device == "gpu" else "bfloat16"
