"""Islands of float32 on TensorFlow keep the promises of the module `islands`."""

import tensorflow  # noqa: F401
from islands import test_promises  # noqa: F401
