"""State that Keras keeps is float32 in a region, on JAX."""

from keras_state import *  # noqa: F403
