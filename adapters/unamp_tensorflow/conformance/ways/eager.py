"""Eager functions: decorated, in threads, and beside Keras's own mixed precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from unamp._function_types import Function
from unamp.adapter import OpenRegion, Way
from unamp.adapter.plain_ways import coroutine, decorated, generator, in_a_thread


def _method(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    class Network(tf.Module):  # type: ignore[misc] # TensorFlow comes without types
        @region()
        def __call__(self, *given: Any) -> Any:
            return function(*given)

    return Network()(*inputs)


def _keras_policy(name: str) -> Any:
    def run(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
        keras = tf.keras
        before = keras.mixed_precision.global_policy()
        keras.mixed_precision.set_global_policy(name)
        try:
            with region():
                return function(*inputs)
        finally:
            keras.mixed_precision.set_global_policy(before)

    return run


def _closed_inside(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    with region():
        for name in ("mixed_bfloat16", "float32"):
            tf.keras.layers.Dense(2, dtype=name)(tf.ones((1, 2)))
        return function(*inputs)


WAYS = (
    Way("decorated function", "decorated", decorated),
    Way("decorated method of a module", "decorated", _method),
    Way("decorated generator", "decorated", generator),
    Way("decorated coroutine", "decorated", coroutine),
    Way("in a thread", "eager", in_a_thread, gradients=False),
    Way(
        "Keras's global policy mixed_bfloat16 around the region",
        "foreign AMP",
        _keras_policy("mixed_bfloat16"),
    ),
    Way("Keras's global policy float32 around the region", "foreign AMP", _keras_policy("float32")),
    Way("layers with dtype policies of their own before", "foreign AMP", _closed_inside),
)
