"""`torch.cpu.amp`, the older spelling of `torch.amp` for the CPU."""

from unamp.dialects.torch.cpu import amp

__all__ = ["amp"]
