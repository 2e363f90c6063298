"""Islands of float32 on TensorFlow: see `islands`."""

import tensorflow  # noqa: F401
from islands import test_promises  # noqa: F401
