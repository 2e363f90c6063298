"""`torch.amp.autocast_mode`, which some code imports from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unamp.dialects.torch.amp import autocast, custom_bwd, custom_fwd, is_autocast_available

__all__ = ["autocast", "autocast_decorator", "custom_bwd", "custom_fwd", "is_autocast_available"]


def autocast_decorator(autocast_instance: autocast, func: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose body runs inside a region, as the region does as a decorator."""
    return autocast_instance(func)
