"""float32 that a layer of Keras states on PyTorch: see `keras_float32`."""

import functools

import torch
from keras_float32 import *  # noqa: F403

COMPILERS = [functools.partial(torch.compile, backend="aot_eager")]
