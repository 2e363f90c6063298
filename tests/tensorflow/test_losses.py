"""Losses of Keras on TensorFlow."""

from keras_losses import *  # noqa: F403
