"""`torch.amp` for every framework; see `unamp.dialects.torch.amp`."""

from unamp.dialects.torch import amp, cpu, cuda
from unamp.dialects.torch.amp import (
    GradScaler,
    autocast,
    custom_bwd,
    custom_fwd,
    is_autocast_available,
)

__all__ = [
    "GradScaler",
    "amp",
    "autocast",
    "cpu",
    "cuda",
    "custom_bwd",
    "custom_fwd",
    "is_autocast_available",
]
