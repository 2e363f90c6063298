"""PyTorch's functions in the signatures by which conformance calls them.

No module that a user imports loads this.
"""

from unamp_torch.conformance.operations import TorchOperations

__all__ = ["TorchOperations"]
