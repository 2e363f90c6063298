"""TensorFlow and Keras for unamp; found through the entry point ``tensorflow`` of the group ``unamp.adapters``."""

import tensorflow

from unamp.adapter import check_version
from unamp_tensorflow.versions import REQUIRES

__all__ = ["REQUIRES", "adapter"]

check_version("tensorflow", tensorflow.__version__, REQUIRES, older="older ones are not examined")

# Not before: other versions do not have what these import.
from unamp_tensorflow.adapter import TensorFlowAdapter  # noqa: E402

adapter = TensorFlowAdapter()
