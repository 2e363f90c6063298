"""Turn functions of TensorFlow and Keras into functions with PyTorch's signatures."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from unamp._function_types import Function
from unamp.errors import FrameworkNotSupported
from unamp_tensorflow.spellings import keras_in_use
from unamp_tensorflow.state import Tensor


def keras(name: str) -> Any:
    """Return the object of a name in Keras, which is imported here at the latest.

    Raises:
        FrameworkNotSupported: where Keras computes with another framework in this process.
    """
    found: Any = tf.keras
    check_keras()
    for part in name.split("."):
        found = getattr(found, part)
    return found


def check_keras() -> None:
    """Check that Keras, which is imported, computes with TensorFlow.

    Raises:
        FrameworkNotSupported: where it does not: its tensors would follow no rule here.
    """
    if not keras_in_use():
        raise FrameworkNotSupported(
            f"Keras computes with {tf.keras.config.backend()} in this process, and is a part of "
            "TensorFlow's operations; set the environment variable KERAS_BACKEND to tensorflow, or "
            "take it away"
        )


def last(tensor: Tensor) -> Tensor:
    """Move channels from the second axis, as in PyTorch, to the last."""
    return tf.transpose(tensor, [0, *range(2, tensor.ndim), 1])


def first(tensor: Tensor) -> Tensor:
    """Move channels from the last axis to the second, as in PyTorch."""
    return tf.transpose(tensor, [0, tensor.ndim - 1, *range(1, tensor.ndim - 1)])


def channels(function: Function) -> Function:
    """Let a function of channels-last tensors take and return channels-first ones."""
    return lambda input, *args, **kwargs: first(function(last(input), *args, **kwargs))


def axis(function: Function, name: str = "axis") -> Function:
    """Return a function whose argument `dim` is the given function's `axis`."""
    return lambda *args, dim, **kwargs: function(*args, **{name: dim}, **kwargs)


def ops(name: str) -> Function:
    """Return a function of `keras.ops`, found at its call, since Keras is imported late."""
    return lambda *args, **kwargs: keras(f"ops.{name}")(*args, **kwargs)


def pool(function: Function, *, lowest: bool = False) -> Function:
    """Return a pooling function in PyTorch's signature.

    Its input is padded with zero, or with the lowest number.
    """

    def pooled(input: Tensor, size: Any, stride: Any = None, padding: int = 0) -> Tensor:
        if padding:
            sides = [[0, 0], *([[padding, padding]] * (input.ndim - 2)), [0, 0]]
            input = tf.pad(input, sides, constant_values=input.dtype.min if lowest else 0)
        return function(input, size, size if stride is None else stride, "VALID")

    return channels(pooled)
