"""MindSpore's functions in the conformance suite's signatures. No user's import loads this."""

from unamp_mindspore.conformance.operations import MindSporeOperations

__all__ = ["MindSporeOperations"]
