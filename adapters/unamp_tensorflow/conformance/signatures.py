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


def axis(function: Function) -> Function:
    """Return a function whose argument `dim` is the given function's `axis`."""
    return lambda *args, dim, **kwargs: function(*args, axis=dim, **kwargs)


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


def loss(name: str) -> Function:
    """Return a loss of Keras for each element, or reduced as PyTorch's argument `reduction` says.

    Keras averages over the last axis, so each element is a row of its own here.
    """

    def shared(input: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
        return reduced(keras(f"losses.{name}")(target[..., None], input[..., None]), reduction)

    return shared


def reduced(losses: Tensor, reduction: str) -> Tensor:
    """Return losses, reduced as PyTorch's argument `reduction` says."""
    return (
        losses
        if reduction == "none"
        else tf.reduce_sum(losses)
        if reduction == "sum"
        else tf.reduce_mean(losses)
    )
