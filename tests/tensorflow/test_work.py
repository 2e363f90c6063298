"""Traces of a training step of Keras on TensorFlow."""

from keras_worked import *  # noqa: F403
