"""Functions that are traced to graphs, compiled, or exported and loaded again."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import tensorflow as tf

from unamp._function_types import Function
from unamp.adapter import OpenRegion, Way
from unamp.adapter.plain_ways import both
from unamp_tensorflow.conformance.ways.opening import (
    ValueAndGrads,
    both_gradients,
    of_tensors,
    value_and_gradients,
)


def _graph(function: Function, inputs: Sequence[Any], **options: Any) -> Any:
    return tf.function(function, **options)(*inputs)


def _run_eagerly(function: Function, inputs: Sequence[Any]) -> Any:
    tf.config.run_functions_eagerly(True)
    try:
        return tf.function(function)(*inputs)
    finally:
        tf.config.run_functions_eagerly(False)


def _nested(function: Function, inputs: Sequence[Any]) -> Any:
    inner = tf.function(function)
    return tf.function(lambda *given: inner(*given))(*inputs)


def _concrete(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    """Trace the function in the region, and call it outside."""
    taking, tensors = of_tensors(function, inputs)
    with region():
        made = tf.function(taking).get_concrete_function(*tensors)
    return made(*tensors)


def _wrapped(function: Function, inputs: Sequence[Any]) -> Any:
    taking, tensors = of_tensors(function, inputs)
    return tf.compat.v1.wrap_function(taking, [tf.TensorSpec(t.shape, t.dtype) for t in tensors])(
        *tensors
    )


def _saved(
    function: Function, inputs: Sequence[Any], region: Callable[[], Any] = nullcontext
) -> Any:
    """Save the function as a SavedModel, in a region if one is given; load that and call it."""
    taking, tensors = of_tensors(function, inputs)
    module = tf.Module()
    module.run = tf.function(
        taking, input_signature=[tf.TensorSpec(t.shape, t.dtype) for t in tensors]
    )
    module.kept = [value for value in inputs if isinstance(value, tf.Variable)]
    with tempfile.TemporaryDirectory() as folder:
        with region():
            tf.saved_model.save(module, folder)
        loaded = tf.saved_model.load(folder)
        return loaded.run(*tensors)


def _loaded_before(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    """Save the function in the region, and load and call it outside."""
    return _saved(function, inputs, region)


def _decorated_inside(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    return tf.function(region()(function))(*inputs)


def _decorated_around(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    return region()(tf.function(function))(*inputs)


def _session(function: Function, inputs: Sequence[Any], places: Sequence[int]) -> ValueAndGrads:
    """Build a graph of version 1, with its own gradients, and run it in a session."""
    values = [value.numpy() for value in inputs]
    with tf.Graph().as_default():
        leaves = [tf.compat.v1.placeholder(value.dtype, value.shape) for value in inputs]
        result = function(*leaves)
        gradients = tf.gradients(result, [leaves[place] for place in places])
        asked = [result, *(gradient for gradient in gradients if gradient is not None)]
        with tf.compat.v1.Session() as session:
            found = iter(session.run(asked, dict(zip(leaves, values, strict=True))))
    return tf.constant(next(found)), [
        None if gradient is None else _dense(next(found)) for gradient in gradients
    ]


def _dense(found: Any) -> Any:
    """Return a gradient from a session as a tensor; an embedding's is several arrays there."""
    return (
        tf.IndexedSlices(*map(tf.constant, found))
        if isinstance(found, tuple)
        else tf.constant(found)
    )


def _step(
    function: Function, inputs: Sequence[Any], places: Sequence[int], **options: Any
) -> ValueAndGrads:
    """Differentiate inside a graph, as a training step does."""

    def step(*given: Any) -> Any:
        return value_and_gradients(function, given, places)

    found: ValueAndGrads = tf.function(step, **options)(*inputs)
    return found


def ways() -> Iterator[Way]:
    """Yield the ways of graphs and compilers.

    A graph's optimizer fuses operations, so results are equal within a bound, and not to the bit.
    """
    bound: dict[str, Any] = {"equal": "bound"}
    dear: dict[str, Any] = {**bound, "dear": True}
    yield from both("tf.function", "compiled", _graph, **bound)
    yield from both_gradients("training step in a tf.function", "compiled", _step, **dear)
    yield from both("tf.function, run eagerly", "compiled", _run_eagerly)
    yield from both("tf.function in a tf.function", "compiled", _nested, **dear)
    yield from both_gradients(
        "training step in XLA", "compiled", partial(_step, jit_compile=True), **dear
    )
    yield Way("concrete function, traced in the region", "traced", _concrete, **dear)
    yield from both("wrap_function", "traced", _wrapped, **dear)
    yield from both_gradients("session of version 1", "traced", _session, **dear)
    yield from both("SavedModel", "exported", _saved, **dear)
    yield Way("SavedModel, loaded outside", "exported", _loaded_before, **dear)
    yield Way("tf.function, function decorated", "decorated", _decorated_inside, **dear)
    yield Way("tf.function, decorated around", "decorated", _decorated_around, **dear)
