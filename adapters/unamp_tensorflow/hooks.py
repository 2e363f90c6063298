"""The private names of TensorFlow and Keras that the adapter uses, checked before their import."""

from unamp.adapter.hooks import read_hooks

HOOKS = read_hooks("tensorflow", "unamp_tensorflow")
