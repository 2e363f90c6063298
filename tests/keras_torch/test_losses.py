"""Losses of Keras on PyTorch."""

from keras_losses import *  # noqa: F403
