"""MindSpore's functions in conformance's signatures. Nothing that a user imports loads this."""

from unamp_mindspore.conformance.operations import MindSporeOperations

__all__ = ["MindSporeOperations"]
