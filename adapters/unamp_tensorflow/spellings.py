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

    Ask this before every use of `tf.keras`, which would import Keras: that takes seconds.
    """
    return keras_on("tensorflow")


def named(path: str) -> Any:
    """Return the object of a spelling; None where this version lacks it or Keras is not in use."""
    head, _, rest = path.partition(".")
    if head != "keras":
        return at_path(tf, path)
    if not keras_in_use():
        return None
    # The module behind `tf.keras`, which has Keras 2's spellings besides Keras 3's.
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
