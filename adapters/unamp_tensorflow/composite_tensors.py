"""Tensors made of others: ragged, sparse, slices of a gradient, and types of a user's own.

TensorFlow's own have one tensor of values; a rule casts that, and so them. Of a type of a user's
own only its functions know what it is made of: they are called under the policy, and what they
compute with follows its rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import tensorflow as tf
from tensorflow.python.framework import composite_tensor

if TYPE_CHECKING:
    from unamp_tensorflow.state import Value

    #: A tensor of TensorFlow's own that is made of others.
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
    """Return the values of a composite tensor of TensorFlow's own, anything else as it is."""
    found = VALUES.get(type(value))
    return value if found is None else found.get(value)


def is_dispatched(value: object) -> bool:
    """Return whether a value is a composite tensor.

    An operation type does not take it; the type's wrapper dispatches on it.
    """
    return isinstance(value, composite_tensor.CompositeTensor) and not isinstance(
        value, tf.Variable
    )


def dispatches(args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Return whether an argument is of a user's own type.

    TensorFlow calls the functions of such a type in place of its own.
    """
    for value in (*args, *kwargs.values()):
        if _is_users(value) or (isinstance(value, (list, tuple)) and any(map(_is_users, value))):
            return True
    return False


def _is_users(value: object) -> bool:
    return isinstance(value, tf.experimental.ExtensionType) and not isinstance(value, tf.Tensor)
