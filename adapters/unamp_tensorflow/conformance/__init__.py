"""TensorFlow's functions in the signatures that conformance calls them by. Nothing that a user imports loads this."""

from unamp_tensorflow.conformance.operations import TensorFlowOperations

__all__ = ["TensorFlowOperations"]
