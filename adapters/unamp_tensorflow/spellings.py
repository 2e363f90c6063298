"""The names of TensorFlow's and Keras's functions and layer classes, for lists that hold the objects themselves."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

import tensorflow as tf

from unamp.vocabulary import vocabulary

__all__ = ["keras_in_use", "named", "spelling"]


def keras_in_use() -> bool:
    """Whether Keras is imported, and computes with TensorFlow. It is never imported here: that takes seconds."""
    backend = sys.modules.get("keras.src.backend")
    return backend is not None and getattr(backend, "backend", lambda: "")() == "tensorflow" and "keras" in sys.modules


def named(path: str) -> Any:
    """What a spelling of the vocabulary stands for; None where there is no such name, or nobody imported Keras."""
    head, _, rest = path.partition(".")
    if head == "keras":
        if not keras_in_use():
            return None
        # TensorFlow's name for it has the older spellings too.
        value, path = sys.modules.get("keras._tf_keras.keras", sys.modules["keras"]), rest
    else:
        value = tf
    for part in path.split("."):
        value = getattr(value, part, None)
    return value


def spelling(value: object) -> str | None:
    """The name of a function or layer class, with the framework in front; None for what is neither."""
    names = _names(keras_in_use())
    found = names.get(id(value))
    if found is None and isinstance(value, type):  # a user's own subclass of a layer is that layer
        found = next((name for base in value.__mro__ if (name := names.get(id(base)))), None)
    return found


@cache
def _names(with_keras: bool) -> Mapping[int, str]:
    names: dict[int, str] = {}
    for op in vocabulary().values():
        for path in op.spellings.get("tensorflow", ()):
            for value in (named(path), getattr(tf.raw_ops, path, None)):
                if callable(value):
                    names.setdefault(id(value), f"tensorflow.{path}")
    return names
