"""State that Keras keeps, on PyTorch."""

from keras_state import *  # noqa: F403
