"""PyTorch's functions in the signatures that conformance calls them by.

Nothing that a user imports loads this.
"""

from unamp_torch.conformance.operations import TorchOperations

__all__ = ["TorchOperations"]
