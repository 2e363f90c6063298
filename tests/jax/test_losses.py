"""Losses of Keras on JAX."""

from keras_losses import *  # noqa: F403
