"""Islands of float32 on JAX: see `islands`."""

import jax  # noqa: F401
from islands import test_promises  # noqa: F401
