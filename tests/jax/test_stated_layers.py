"""float32 that a layer of Keras states on JAX: see `keras_float32`."""

import jax
from keras_float32 import *  # noqa: F403

COMPILERS = [jax.jit]
