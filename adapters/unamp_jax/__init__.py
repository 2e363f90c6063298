"""JAX for unamp, with flax, equinox, optax and Keras on it; found through the entry point ``jax`` of ``unamp.adapters``."""

import jax

from unamp.adapter import check_version

__all__ = ["REQUIRES", "adapter"]

REQUIRES = ">=0.8,<1"
check_version("jax", jax.__version__, REQUIRES, older="older ones have no jax.make_user_context")

# Not before: other versions do not have what these import.
from unamp_jax.adapter import JaxAdapter  # noqa: E402

adapter = JaxAdapter(REQUIRES)
