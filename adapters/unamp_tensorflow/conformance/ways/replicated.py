"""Functions that a strategy runs as replicas, on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from unamp._function_types import Function
from unamp.adapter import Way
from unamp_tensorflow.conformance.ways.opening import (
    Differentiates,
    ValueAndGrads,
    both_gradients,
    value_and_gradients,
)


def _eagerly(made: Callable[[str], Any]) -> Differentiates:
    def run(function: Function, inputs: Sequence[Any], places: Sequence[int]) -> ValueAndGrads:
        found: ValueAndGrads = made(inputs[0].device).run(
            lambda: value_and_gradients(function, inputs, places)
        )
        return found

    return run


def _in_a_graph(made: Callable[[str], Any]) -> Differentiates:
    def run(function: Function, inputs: Sequence[Any], places: Sequence[int]) -> ValueAndGrads:
        strategy = made(inputs[0].device)
        step = tf.function(
            lambda *given: strategy.run(lambda: value_and_gradients(function, given, places))
        )
        found: ValueAndGrads = step(*inputs)
        return found

    return run


def ways() -> Iterator[Way]:
    """Yield the ways of strategies."""
    strategies: dict[str, Callable[[str], Any]] = {
        "MirroredStrategy": lambda device: tf.distribute.MirroredStrategy([device]),
        "OneDeviceStrategy": lambda device: tf.distribute.OneDeviceStrategy(device),
    }
    for name, made in strategies.items():
        yield from both_gradients(name, "replicated", _eagerly(made), dear=True)
        traced = _in_a_graph(made)
        yield from both_gradients(
            f"{name}, in a tf.function", "replicated", traced, equal="bound", dear=True
        )
