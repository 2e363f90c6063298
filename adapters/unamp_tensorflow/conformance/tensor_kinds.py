"""TensorFlow's kinds of tensor that are not one dense array, and a policy's effect on each."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf

from unamp._function_types import Function
from unamp.adapter.tensor_kinds import TensorKind
from unamp_tensorflow.casting import dtype_of
from unamp_tensorflow.composite_tensors import values

#: No low dtype has any of these numbers, and their mean differs if they are rounded before.
_NUMBERS = np.linspace(0.2, 1.1, 6, dtype=np.float32)
_ROWS = np.linspace(0.3, 2.1, 6, dtype=np.float32).reshape(3, 2)


def tensor_kinds() -> tuple[TensorKind, ...]:
    """Return the kinds: TensorFlow's own composite tensors, and a user's own type."""
    return _ragged(), _sparse(), _slices(), _extension()


def _kind(name: str, make: Function, followed: dict[str, Function]) -> TensorKind:
    def made(dtype: str, device: str) -> Any:
        with tf.device(device):
            return make(dtype)

    return TensorKind(
        name, made, followed, dict.fromkeys(followed, "followed"), "", _values, dtype_of
    )


def _values(result: Any) -> np.ndarray:
    with_values = result.values if isinstance(result, _masked()) else values(result)
    return np.asarray(tf.convert_to_tensor(with_values).numpy()).astype(np.float32)


def _ragged() -> TensorKind:
    weights = tf.constant(_ROWS[None, :2])

    def make(dtype: str) -> Any:
        return tf.RaggedTensor.from_row_splits(tf.cast(_NUMBERS.reshape(3, 2), dtype), [0, 3])

    followed = {
        "add": lambda t: t + t,
        "cat": lambda t: tf.concat([t, t], 0),
        "cumsum": lambda t: tf.cumsum(t, axis=1),
        "div": lambda t: t / t[:, :, :1],
        "exp": tf.exp,
        "gelu": tf.nn.gelu,
        "log": tf.math.log,
        "matmul": lambda t: tf.matmul(t, weights),
        "mean": lambda t: tf.reduce_mean(t, axis=1),
        "mul": lambda t: t * t,
        "prod": lambda t: tf.reduce_prod(t, axis=1),
        "relu": tf.nn.relu,
        "sigmoid": tf.sigmoid,
        "softmax": tf.nn.softmax,
        "std": lambda t: tf.math.reduce_std(t, axis=1),
        "sum": lambda t: tf.reduce_sum(t, axis=1),
    }
    return _kind("tf.RaggedTensor", make, followed)


def _sparse() -> TensorKind:
    dense = tf.constant(_ROWS[:2])

    def make(dtype: str) -> Any:
        return tf.SparseTensor([[0, 0], [1, 1], [2, 0]], tf.cast(_NUMBERS[:3], dtype), [3, 2])

    followed = {
        "sparse_mm": lambda t: tf.sparse.sparse_dense_matmul(t, dense),
        "sqrt": tf.sqrt,
        "tanh": tf.tanh,
        "exp": lambda t: tf.sparse.map_values(tf.exp, t),
        "sum": lambda t: tf.sparse.reduce_sum(t, axis=1),
        "amax": lambda t: tf.sparse.reduce_max(t, axis=1),
    }
    return _kind("tf.SparseTensor", make, followed)


def _slices() -> TensorKind:
    def make(dtype: str) -> Any:
        return tf.IndexedSlices(
            tf.cast(_NUMBERS.reshape(3, 2), dtype), tf.constant([0, 2, 1]), tf.constant([4, 2])
        )

    followed: dict[str, Callable[[Any], Any]] = {"abs": tf.abs, "add_n": lambda t: tf.add_n([t, t])}
    return _kind("tf.IndexedSlices", make, followed)


def _extension() -> TensorKind:
    weights = tf.constant(_ROWS[:2])

    def make(dtype: str) -> Any:
        return _masked()(tf.cast(_NUMBERS.reshape(3, 2), dtype), tf.ones([3, 2], tf.bool))

    followed = {
        "add": lambda t: tf.add(t, t),
        "exp": tf.exp,
        "gelu": tf.nn.gelu,
        # TensorFlow itself takes bfloat16 beside float32 here, so the weights are cast.
        "matmul": lambda t: tf.matmul(t, tf.cast(weights, t.dtype)),
        "softmax": tf.nn.softmax,
    }
    return _kind("tf.experimental.ExtensionType", make, followed)


@cache
def _masked() -> Any:
    """Return a type as users write them: values with a mask, and functions for it."""

    class Masked(tf.experimental.ExtensionType):  # type: ignore[misc] # TensorFlow comes without types
        values: tf.Tensor
        mask: tf.Tensor

        @property
        def dtype(self) -> Any:
            return self.values.dtype

    def each(api: Function, x: Any) -> Any:
        return Masked(api(x.values), x.mask)

    def both(api: Function, x: Any, y: Any) -> Any:
        return Masked(api(x.values, y.values), x.mask & y.mask)

    def matmul(*args: Any, **kwargs: Any) -> Any:
        return Masked(tf.matmul(args[0].values, *args[1:], **kwargs), args[0].mask)

    def softmax(*args: Any, **kwargs: Any) -> Any:
        return Masked(tf.nn.softmax(args[0].values, *args[1:], **kwargs), args[0].mask)

    tf.experimental.dispatch_for_unary_elementwise_apis(Masked)(each)
    tf.experimental.dispatch_for_binary_elementwise_apis(Masked, Masked)(both)
    tf.experimental.dispatch_for_api(tf.matmul, {"a": Masked})(matmul)
    tf.experimental.dispatch_for_api(tf.nn.softmax, {"logits": Masked})(softmax)
    return Masked
