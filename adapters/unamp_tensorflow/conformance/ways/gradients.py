"""Functions that are recomputed for gradients, or differentiated by other means than one tape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from unamp._function_types import Function
from unamp.adapter import Way
from unamp.adapter.plain_ways import both
from unamp_tensorflow.conformance.ways.opening import (
    ValueAndGrads,
    both_gradients,
    floating,
    of_tensors,
    value_and_gradients,
)


def _recomputed(function: Function, inputs: Sequence[Any]) -> Any:
    taking, tensors = of_tensors(function, inputs)
    return tf.recompute_grad(taking)(*tensors)


def _recomputed_in_a_graph(function: Function, inputs: Sequence[Any]) -> Any:
    taking, tensors = of_tensors(function, inputs)
    return tf.function(tf.recompute_grad(taking))(*tensors)


def _custom_gradient(function: Function, inputs: Sequence[Any]) -> Any:
    """Call the function as the forward of `tf.custom_gradient`."""
    taking, tensors = of_tensors(function, inputs)
    places = floating(tensors)

    def called(*given: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([given[place] for place in places])
            result = taking(*given)

        def back(upstream: Any) -> Any:
            found = tape.gradient(
                result, [given[place] for place in places], output_gradients=upstream
            )
            by_place = dict(zip(places, found, strict=True))
            return [by_place.get(n) for n in range(len(given))]

        return tf.identity(result), back

    return tf.custom_gradient(called)(*tensors)


def _forward_mode(function: Function, inputs: Sequence[Any]) -> Any:
    places = floating(inputs)
    primals = [inputs[place] for place in places]
    with tf.autodiff.ForwardAccumulator(primals, [tf.ones_like(each) for each in primals]):
        return function(*inputs)


def _tf_gradients(
    function: Function, inputs: Sequence[Any], places: Sequence[int]
) -> ValueAndGrads:
    def step(*given: Any) -> Any:
        leaves = [
            tf.identity(value) if place in places else value for place, value in enumerate(given)
        ]
        value = function(*leaves)
        return value, tf.gradients(value, [leaves[place] for place in places])

    found: ValueAndGrads = tf.function(step)(*inputs)
    return found


def ways() -> Iterator[Way]:
    """Yield the ways of gradients."""
    yield from both("tf.recompute_grad", "recomputed", _recomputed)
    yield from both(
        "tf.recompute_grad, in a tf.function",
        "recomputed",
        _recomputed_in_a_graph,
        equal="bound",
        dear=True,
    )
    yield from both("tf.custom_gradient", "transformed", _custom_gradient)
    yield from both("ForwardAccumulator", "transformed", _forward_mode, gradients=False, dear=True)
    yield from both_gradients("tape inside", "transformed", value_and_gradients)
    yield from both_gradients(
        "tf.gradients", "transformed", _tf_gradients, equal="bound", dear=True
    )
