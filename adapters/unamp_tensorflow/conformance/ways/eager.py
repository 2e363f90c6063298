"""Functions that are simply called: decorated, in other threads, and beside Keras's own mixed precision."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf

from unamp.adapter import OpenRegion, Way
from unamp_tensorflow.conformance.ways.opening import Function, inside

__all__ = ["WAYS"]


def _decorated(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    return region()(function)(*inputs)


def _method(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    class Network(tf.Module):  # type: ignore[misc] # TensorFlow comes without types
        @region()
        def __call__(self, *given: Any) -> Any:
            return function(*given)

    return Network()(*inputs)


def _generator(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    def generate() -> Iterator[Any]:
        yield None
        yield function(*inputs)

    return list(region()(generate)())[-1]


def _coroutine(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    async def compute() -> Any:
        await asyncio.sleep(0)
        return function(*inputs)

    return asyncio.run(region()(compute)())


def _in_a_thread(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(inside(function, region), *inputs).result()


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
    Way("decorated function", "decorated", _decorated),
    Way("decorated method of a module", "decorated", _method),
    Way("decorated generator", "decorated", _generator),
    Way("decorated coroutine", "decorated", _coroutine),
    Way("in a thread", "eager", _in_a_thread, gradients=False),
    Way("Keras's global policy mixed_bfloat16 around the region", "foreign AMP", _keras_policy("mixed_bfloat16")),
    Way("Keras's global policy float32 around the region", "foreign AMP", _keras_policy("float32")),
    Way("layers with dtype policies of their own before", "foreign AMP", _closed_inside),
)
