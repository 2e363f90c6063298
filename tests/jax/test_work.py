"""Traces of a training step of Keras on JAX."""

from keras_worked import *  # noqa: F403
