"""Traces of a training step of Keras on JAX have every layer's work once."""

from keras_worked import *  # noqa: F403
