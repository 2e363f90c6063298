"""The private names of TensorFlow and Keras that the adapter uses.

They are looked at before they are imported.
"""

from unamp.adapter.hooks import read_hooks

HOOKS = read_hooks("tensorflow", "unamp_tensorflow")
