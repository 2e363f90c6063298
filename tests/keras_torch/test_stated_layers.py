"""Layers of Keras that state float32 on PyTorch keep the promises of `keras_float32`."""

import functools

import torch
from keras_float32 import *  # noqa: F403

COMPILERS = [functools.partial(torch.compile, backend="aot_eager")]
