"""`torch.cpu.amp.grad_scaler`, which some code imports from."""

from unamp.dialects.torch.cpu.amp import GradScaler

__all__ = ["GradScaler"]
