"""The names of TensorFlow's and Keras's functions and layer classes, for lists that hold the objects themselves."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import tensorflow as tf

from unamp.adapter.spellings import ObjectNames, at_path

__all__ = ["keras_in_use", "named", "spelling"]


def keras_in_use() -> bool:
    """Return whether Keras is imported, and computes with TensorFlow. It is never imported here: that takes seconds."""
    backend = sys.modules.get("keras.src.backend")
    return backend is not None and getattr(backend, "backend", lambda: "")() == "tensorflow" and "keras" in sys.modules


def named(path: str) -> Any:
    """Return what a spelling of the vocabulary stands for; None where there is no such name, or nobody imported Keras."""
    head, _, rest = path.partition(".")
    if head != "keras":
        return at_path(tf, path)
    if not keras_in_use():
        return None
    # TensorFlow's name for it has the older spellings too.
    return at_path(sys.modules.get("keras._tf_keras.keras", sys.modules["keras"]), rest)


def spelling(value: object) -> str | None:
    """Return the name of a function or layer class, with the framework in front; None for what is neither."""
    return _names(keras_in_use()).spelling(value)


@cache
def _names(with_keras: bool) -> ObjectNames:
    return ObjectNames("tensorflow", _places)


def _places(path: str) -> Iterator[Any]:
    yield named(path)
    yield getattr(tf.raw_ops, path, None)
