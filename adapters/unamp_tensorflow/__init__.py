"""TensorFlow and Keras, found through the entry point ``tensorflow`` in ``unamp.adapters``."""

import tensorflow

from unamp import amp_warnings
from unamp.adapter import Adapter, check_version
from unamp_tensorflow.hooks import HOOKS

__all__ = ["REQUIRES", "adapter"]

REQUIRES = ">=2.18,<3"
check_version("tensorflow", tensorflow.__version__, REQUIRES, older="older ones are not examined")

HOOKS.probe()
amp_warnings.newer_than_examined("tensorflow", tensorflow.__version__, HOOKS.examined)

# Imported late: a version that is refused above may lack the names that it imports.
from unamp_tensorflow.adapter import TensorFlowAdapter  # noqa: E402

adapter: Adapter = TensorFlowAdapter(REQUIRES)
