"""Islands of float32 on JAX keep the promises of the module `islands`."""

import jax  # noqa: F401
from islands import test_promises  # noqa: F401
