"""Tensors made of others: ragged, sparse, slices of a gradient, and a user's own types.

Each of TensorFlow's own types has one tensor of values, and a rule casts that. A user's own type is
only known to the user's functions for it. They are called under the policy, and the operations
inside them follow their rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import tensorflow as tf
from tensorflow.python.framework import composite_tensor

if TYPE_CHECKING:
    from unamp_tensorflow.state import Value

    #: A tensor of one of TensorFlow's own types that is made of others.
    Made: TypeAlias = tf.RaggedTensor | tf.SparseTensor | tf.IndexedSlices


class _Values(NamedTuple):
    """The values of a kind of composite tensor, one dense tensor."""

    get: Callable[[Made], tf.Tensor]
    replaced: Callable[[Made, tf.Tensor], Made]


#: The values of TensorFlow's composite tensors, by class.
VALUES: Mapping[type, _Values] = {
    tf.RaggedTensor: _Values(lambda t: t.flat_values, lambda t, new: t.with_flat_values(new)),
    tf.SparseTensor: _Values(lambda t: t.values, lambda t, new: t.with_values(new)),
    tf.IndexedSlices: _Values(
        lambda t: t.values, lambda t, new: tf.IndexedSlices(new, t.indices, t.dense_shape)
    ),
}


def values(value: Value) -> Value:
    """Return the values of one of TensorFlow's own composite tensors, anything else as it is."""
    found = VALUES.get(type(value))
    return value if found is None else found.get(value)


def is_dispatched(value: object) -> bool:
    """Return whether a value is a composite tensor, for which an operation's wrapper dispatches."""
    return isinstance(value, composite_tensor.CompositeTensor) and not isinstance(
        value, tf.Variable
    )


def dispatches(args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Return whether an argument is of a user's own type, for which TensorFlow dispatches."""
    for value in (*args, *kwargs.values()):
        if _is_users(value) or (isinstance(value, (list, tuple)) and any(map(_is_users, value))):
            return True
    return False


def _is_users(value: object) -> bool:
    return isinstance(value, tf.experimental.ExtensionType) and not isinstance(value, tf.Tensor)
