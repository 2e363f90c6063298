"""State that Keras keeps, on JAX."""

from keras_state import *  # noqa: F403
