"""`torch.cuda.amp`, the older spelling of `torch.amp` for CUDA."""

from unamp.dialects.torch.cuda import amp

__all__ = ["amp"]
