"""PyTorch for unamp; found through the entry point ``torch`` of the group ``unamp.adapters``."""

from unamp_torch.adapter import TorchAdapter

__all__ = ["adapter"]

adapter = TorchAdapter()
