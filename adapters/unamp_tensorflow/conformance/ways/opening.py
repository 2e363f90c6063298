"""Where a way has its region (inside the function that is run in it, or around the whole), and inputs that are variables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from unamp.adapter import OpenRegion, Way

__all__ = ["Function", "Runs", "both", "floating", "inside", "of_tensors", "value_and_gradients"]

Function = Callable[..., Any]

#: Runs a function on some inputs in a way that knows of no region.
Runs = Callable[[Function, Sequence[Any]], Any]


def inside(function: Function, region: OpenRegion) -> Function:
    """Return a function with the region in it."""

    def body(*inputs: Any) -> Any:
        with region():
            return function(*inputs)

    return body


def both(name: str, kind: str, runs: Runs, **promised: Any) -> Iterator[Way]:
    """Yield two ways: the region inside the function, and around the whole."""

    def run_inside(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
        return runs(inside(function, region), inputs)

    def run_around(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
        with region():
            return runs(function, inputs)

    what = "value_and_grad" if promised.pop("differentiates", False) else "run"
    yield Way(f"{name}, region inside", kind, **{what: run_inside}, **promised)
    yield Way(f"{name}, region around", kind, **{what: run_around}, **promised)


def floating(inputs: Sequence[Any]) -> tuple[int, ...]:
    """Return the places of the inputs that are floating tensors, and no variables."""
    return tuple(n for n, value in enumerate(inputs) if not isinstance(value, tf.Variable) and value.dtype.is_floating)


def of_tensors(function: Function, inputs: Sequence[Any]) -> tuple[Function, list[Any]]:
    """Return a function of the inputs that are tensors, and those: what holds statistics is captured, as variables are."""
    places = [n for n, value in enumerate(inputs) if not isinstance(value, tf.Variable)]
    kept = list(inputs)

    def taking(*given: Any) -> Any:
        values = list(kept)
        for place, value in zip(places, given, strict=True):
            values[place] = value
        return function(*values)

    return taking, [inputs[place] for place in places]


def value_and_gradients(function: Function, inputs: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Return a function's value and, by a tape, its gradient for each floating input; None for the others."""
    places = floating(inputs)
    with tf.GradientTape() as tape:
        for place in places:
            tape.watch(inputs[place])
        value = function(*inputs)
    gradients = tape.gradient(value, [inputs[place] for place in places])
    found = dict(zip(places, gradients, strict=True))
    return value, [found.get(n) for n in range(len(inputs))]
