"""Losses of Keras on PyTorch keep the promises of `keras_losses`."""

from keras_losses import *  # noqa: F403
