"""`torch.cuda.amp.grad_scaler`, which some code imports from."""

from unamp.dialects.torch.cuda.amp import GradScaler

__all__ = ["GradScaler"]
