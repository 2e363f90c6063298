"""`torch.amp.grad_scaler`, which some code imports from."""

from unamp.dialects.torch.amp import GradScaler

__all__ = ["GradScaler"]
