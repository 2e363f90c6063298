"""TensorFlow's functions in conformance's signatures. Nothing that a user imports loads this."""

from unamp_tensorflow.conformance.operations import TensorFlowOperations

__all__ = ["TensorFlowOperations"]
