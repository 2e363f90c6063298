"""The frameworks and devices that are in use, for the dialects."""

from __future__ import annotations

from typing import Any

from unamp.adapter import registry


def has_gpu() -> bool:
    """Return whether a framework that is in use finds a GPU."""
    return any("gpu" in adapter.devices() for adapter in registry.adapters_in_use())


def framework_in_use(name: str) -> Any:
    """Return a framework's module (or NumPy) where this process has imported it, else None."""
    import sys

    return sys.modules.get(name)
