"""Functions that a strategy runs as replicas; here on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from unamp.adapter import Way
from unamp_tensorflow.conformance.ways.opening import Function, Runs, both, value_and_gradients

__all__ = ["ways"]


def _eagerly(made: Callable[[], Any]) -> Runs:
    def run(function: Function, inputs: Sequence[Any]) -> Any:
        return _gathered(made().run(lambda: value_and_gradients(function, inputs)))

    return run


def _in_a_graph(made: Callable[[], Any]) -> Runs:
    def run(function: Function, inputs: Sequence[Any]) -> Any:
        strategy = made()
        found = tf.function(lambda *given: strategy.run(lambda: value_and_gradients(function, given)))(*inputs)
        return _gathered(found)

    return run


def _gathered(found: Any) -> tuple[Any, list[Any]]:
    value, gradients = found
    return value, list(gradients)


def ways() -> Iterator[Way]:
    """Yield the ways of strategies."""
    strategies: dict[str, Callable[[], Any]] = {
        "MirroredStrategy": lambda: tf.distribute.MirroredStrategy(["CPU:0"]),
        "OneDeviceStrategy": lambda: tf.distribute.OneDeviceStrategy("CPU:0"),
    }
    for name, made in strategies.items():
        yield from both(name, "replicated", _eagerly(made), differentiates=True, dear=True)
        traced = _in_a_graph(made)
        yield from both(f"{name}, in a tf.function", "replicated", traced, differentiates=True, equal="bound", dear=True)
