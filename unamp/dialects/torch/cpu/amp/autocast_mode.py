"""`torch.cpu.amp.autocast_mode`, which some code imports from."""

from unamp.dialects.torch.cpu.amp import autocast

__all__ = ["autocast"]
