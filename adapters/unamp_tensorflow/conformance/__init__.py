"""TensorFlow's functions in the conformance suite's signatures. No user's import loads this."""

from unamp_tensorflow.conformance.operations import TensorFlowOperations

__all__ = ["TensorFlowOperations"]
