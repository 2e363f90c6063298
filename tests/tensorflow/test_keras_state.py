"""State that Keras keeps, on TensorFlow."""

from keras_state import *  # noqa: F403
