"""TensorFlow and Keras for unamp; found through the entry point ``tensorflow`` of the group ``unamp.adapters``."""

from unamp_tensorflow.adapter import TensorFlowAdapter

__all__ = ["adapter"]

adapter = TensorFlowAdapter()
