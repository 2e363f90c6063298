"""The place of a way's region, inside the function or around the whole call, and its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from unamp._function_types import Function
from unamp.adapter import OpenRegion, Way
from unamp.adapter.plain_ways import inside

#: Runs a function on some inputs in a way that knows of no region.
Runs = Callable[[Function, Sequence[Any]], Any]

#: A value, and its gradients for the inputs in some places; None for an input that it does not
#: depend on.
ValueAndGrads = tuple[Any, Sequence[Any]]
Differentiates = Callable[[Function, Sequence[Any], Sequence[int]], ValueAndGrads]


def both(name: str, kind: str, runs: Runs, **promised: Any) -> Iterator[Way]:
    """Yield two ways: the region inside the function, and around the whole."""
    for where, run in _opened(runs):
        yield Way(f"{name}, region {where}", kind, run, **promised)


def both_gradients(
    name: str, kind: str, differentiates: Differentiates, **promised: Any
) -> Iterator[Way]:
    """Yield two ways of differentiating: the region inside the function, and around the whole."""
    for where, run in _opened(differentiates):
        yield Way(f"{name}, region {where}", kind, value_and_grad=run, **promised)


def _opened(runs: Callable[..., Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    def run_inside(function: Function, region: OpenRegion, *given: Any) -> Any:
        return runs(inside(function, region), *given)

    def run_around(function: Function, region: OpenRegion, *given: Any) -> Any:
        with region():
            return runs(function, *given)

    yield "inside", run_inside
    yield "around", run_around


def floating(inputs: Sequence[Any]) -> tuple[int, ...]:
    """Return the places of the inputs that are floating tensors and no variables."""
    return tuple(
        n
        for n, value in enumerate(inputs)
        if not isinstance(value, tf.Variable) and value.dtype.is_floating
    )


def of_tensors(function: Function, inputs: Sequence[Any]) -> tuple[Function, list[Any]]:
    """Return a function of the inputs that are tensors, and these inputs.

    Inputs that are variables (running statistics) are captured.
    """
    places = [n for n, value in enumerate(inputs) if not isinstance(value, tf.Variable)]
    kept = list(inputs)

    def taking(*given: Any) -> Any:
        values = list(kept)
        for place, value in zip(places, given, strict=True):
            values[place] = value
        return function(*values)

    return taking, [inputs[place] for place in places]


def value_and_gradients(
    function: Function, inputs: Sequence[Any], places: Sequence[int]
) -> ValueAndGrads:
    """Return a function's value and, by a tape, its gradients for the inputs in some places."""
    leaves = [inputs[place] for place in places]
    with tf.GradientTape() as tape:
        for leaf in leaves:
            tape.watch(leaf)
        value = function(*inputs)
    return value, tape.gradient(value, leaves)
