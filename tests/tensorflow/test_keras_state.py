"""State that Keras keeps is float32 in a region, on TensorFlow."""

from keras_state import *  # noqa: F403
