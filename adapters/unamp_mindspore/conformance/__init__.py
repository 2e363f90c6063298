"""MindSpore's functions in the signatures of conformance. Nothing that a user imports loads this."""

from unamp_mindspore.conformance.operations import MindSporeOperations

__all__ = ["MindSporeOperations"]
