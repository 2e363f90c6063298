"""JAX for unamp, with flax, equinox, optax and Keras on it.

Found through the entry point ``jax`` of ``unamp.adapters``.

For JAX's own idiom there are also `loss_scaling`, with pure functions for `jax.jit`, and, for
parameters that are values, `low_parameters` and `with_master_weights`.
"""

import jax

from unamp import amp_warnings
from unamp.adapter import Adapter, check_version
from unamp_jax.hooks import HOOKS

__all__ = ["REQUIRES", "adapter", "loss_scaling", "low_parameters", "with_master_weights"]

REQUIRES = ">=0.8,<1"
check_version("jax", jax.__version__, REQUIRES, older="older ones have no jax.make_user_context")
HOOKS.probe()
amp_warnings.newer_than_examined("jax", jax.__version__, HOOKS.examined)

# Imported last: other versions lack names that these modules import.
from unamp_jax import loss_scaling  # noqa: E402
from unamp_jax.adapter import JaxAdapter  # noqa: E402
from unamp_jax.masters import low_parameters, with_master_weights  # noqa: E402

adapter: Adapter = JaxAdapter(REQUIRES)
