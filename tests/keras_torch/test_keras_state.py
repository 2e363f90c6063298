"""State that Keras keeps is float32 in a region, on PyTorch."""

from keras_state import *  # noqa: F403
