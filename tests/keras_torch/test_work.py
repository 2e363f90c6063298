"""Traces of a training step of Keras on PyTorch."""

from keras_worked import *  # noqa: F403
