"""`torch.cuda.amp.autocast_mode`, which some code imports from."""

from unamp.dialects.torch.cuda.amp import autocast, custom_bwd, custom_fwd

__all__ = ["autocast", "custom_bwd", "custom_fwd"]
