"""Keras on PyTorch: the backend is chosen before Keras is imported."""

import os

os.environ["KERAS_BACKEND"] = "torch"
