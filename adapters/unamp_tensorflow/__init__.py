"""TensorFlow and Keras for unamp; found through the entry point ``tensorflow`` of the group ``unamp.adapters``."""

import tensorflow

from unamp.adapter import check_version
from unamp.adapter.hooks import read_hooks

__all__ = ["REQUIRES", "adapter", "hooks"]

REQUIRES = ">=2.18,<3"
check_version("tensorflow", tensorflow.__version__, REQUIRES, older="older ones are not examined")

hooks = read_hooks("tensorflow", __name__)
hooks.probe()

# Not before: other versions do not have what these import.
from unamp_tensorflow.adapter import TensorFlowAdapter  # noqa: E402

adapter = TensorFlowAdapter(REQUIRES, hooks)
