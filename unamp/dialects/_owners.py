"""Whose a value is, for the dialects."""

from __future__ import annotations

from typing import Any

from unamp import registry
from unamp.adapter import Adapter

__all__ = ["framework_in_use", "has_gpu", "owner"]

_ASKED = {"tensor": "is_tensor", "network": "is_network", "optimizer": "is_optimizer"}


def owner(value: object, kind: str) -> Adapter | None:
    """The adapter that knows a value as one of its tensors, networks or optimizers; None where none does."""
    for adapter in registry.adapters_in_use():
        if getattr(adapter, _ASKED[kind])(value):
            return adapter
    registry.check_suitable()
    return None


def has_gpu() -> bool:
    """Whether a framework that is in use finds a GPU."""
    return any("gpu" in adapter.devices() for adapter in registry.adapters_in_use())


def framework_in_use(name: str) -> Any:
    """A framework's module (or NumPy), where something in this process has imported it; else None."""
    import sys

    return sys.modules.get(name)
