"""What turns a function of TensorFlow or Keras into one with PyTorch's signature."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from unamp_tensorflow.state import Function, Tensor

__all__ = ["axis", "channels", "first", "keras", "last", "ops", "pool"]


def keras(name: str) -> Any:
    """A name of Keras, which is imported late."""
    found: Any = tf.keras
    for part in name.split("."):
        found = getattr(found, part)
    return found


def last(tensor: Tensor) -> Tensor:
    """Channels last."""
    return tf.transpose(tensor, [0, *range(2, tensor.ndim), 1])


def first(tensor: Tensor) -> Tensor:
    """Channels first."""
    return tf.transpose(tensor, [0, tensor.ndim - 1, *range(1, tensor.ndim - 1)])


def channels(function: Function) -> Function:
    """A function of channels-last tensors, for channels-first ones."""
    return lambda input, *args, **kwargs: first(function(last(input), *args, **kwargs))


def axis(function: Function, name: str = "axis") -> Function:
    """A function that calls `axis` what PyTorch calls `dim`."""
    return lambda *args, dim, **kwargs: function(*args, **{name: dim}, **kwargs)


def ops(name: str) -> Function:
    """A function of `keras.ops`, found when it is called: Keras is imported late."""
    return lambda *args, **kwargs: keras(f"ops.{name}")(*args, **kwargs)


def pool(function: Function) -> Function:
    """A pooling function, for windows that do not overlap."""
    return channels(lambda input, size: function(input, size, size, "VALID"))
