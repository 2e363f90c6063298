"""Layers of Keras that state float32 on JAX keep the promises of `keras_float32`."""

import jax
from keras_float32 import *  # noqa: F403

COMPILERS = [jax.jit]
