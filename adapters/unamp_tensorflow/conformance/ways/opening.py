"""The inputs of ways, and ways that differentiate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from unamp._function_types import Function
from unamp.adapter import Way
from unamp.adapter.plain_ways import placed

#: A value, and its gradients for the inputs in some places; None for an input that it does not
#: depend on.
ValueAndGrads = tuple[Any, Sequence[Any]]
Differentiates = Callable[[Function, Sequence[Any], Sequence[int]], ValueAndGrads]


def both_gradients(
    name: str, kind: str, differentiates: Differentiates, **promised: Any
) -> Iterator[Way]:
    """Yield two ways of differentiating: the region inside the function, and around the whole."""
    for where, run in placed(differentiates):
        yield Way(f"{name}, region {where}", kind, value_and_grad=run, **promised)


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
