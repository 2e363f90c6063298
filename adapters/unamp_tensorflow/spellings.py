"""TensorFlow's and Keras's functions and layer classes by their spellings, and the reverse."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import tensorflow as tf

from unamp.adapter.keras_models import keras_on
from unamp.adapter.spellings import ObjectNames, at_path


def keras_in_use() -> bool:
    """Return whether Keras is imported and computes with TensorFlow.

    Keras is never imported here: that takes seconds. `tf.keras` would do it, so every use of that
    comes after this.
    """
    return keras_on("tensorflow")


def named(path: str) -> Any:
    """Return the object of a spelling.

    None where this version has no such name, or nobody imported Keras.
    """
    head, _, rest = path.partition(".")
    if head != "keras":
        return at_path(tf, path)
    if not keras_in_use():
        return None
    # `tf.keras` is this module: it has the spellings of Keras 2 besides those of Keras 3.
    return at_path(sys.modules.get("keras._tf_keras.keras", sys.modules["keras"]), rest)


def spelling(value: object) -> str | None:
    """Return the name of a function or layer class, with the framework in front; else None."""
    return _names(keras_in_use()).spelling(value)


@cache
def _names(with_keras: bool) -> ObjectNames:
    return ObjectNames("tensorflow", _objects)


def _objects(path: str) -> Iterator[object]:
    yield named(path)
    yield getattr(tf.raw_ops, path, None)
