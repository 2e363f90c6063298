"""Tensors made of others: ragged, sparse, slices of a gradient, and types of a user's own.

TensorFlow's own have one tensor of values; a rule casts that, and so them. Of a type of a user's
own only its functions know what it is made of: they are called under the policy, and what they
compute with follows its rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.framework import composite_tensor


class _Values(NamedTuple):
    """The values of a kind of composite tensor, one dense tensor."""

    get: Callable[[Any], Any]
    replaced: Callable[[Any, Any], Any]


#: The values of TensorFlow's composite tensors, by class.
VALUES: Mapping[type, _Values] = {
    tf.RaggedTensor: _Values(lambda t: t.flat_values, lambda t, new: t.with_flat_values(new)),
    tf.SparseTensor: _Values(lambda t: t.values, lambda t, new: t.with_values(new)),
    tf.IndexedSlices: _Values(
        lambda t: t.values, lambda t, new: tf.IndexedSlices(new, t.indices, t.dense_shape)
    ),
}


def values(value: Any) -> Any:
    """Return the values of a composite tensor of TensorFlow's own, anything else as it is."""
    found = VALUES.get(type(value))
    return value if found is None else found.get(value)


def is_dispatched(value: Any) -> bool:
    """Return whether a value is a composite tensor.

    An operation type does not take it; the type's wrapper dispatches on it.
    """
    return isinstance(value, composite_tensor.CompositeTensor) and not isinstance(
        value, tf.Variable
    )


def dispatches(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether an argument is of a user's own type.

    TensorFlow calls the functions of such a type in place of its own.
    """
    for value in (*args, *kwargs.values()):
        if _is_users(value) or (isinstance(value, (list, tuple)) and any(map(_is_users, value))):
            return True
    return False


def _is_users(value: Any) -> bool:
    return isinstance(value, tf.experimental.ExtensionType) and not isinstance(value, tf.Tensor)
