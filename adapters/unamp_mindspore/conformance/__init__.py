"""MindSpore's functions in the signatures that conformance calls them by. Nothing that a user imports loads this."""

from unamp_mindspore.conformance.operations import MindSporeOperations

__all__ = ["MindSporeOperations"]
