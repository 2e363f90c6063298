"""Functions in loops and branches, in datasets, and in operations that call Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from unamp._function_types import Function
from unamp.adapter import Way
from unamp.adapter.plain_ways import Runs, both
from unamp_tensorflow.conformance.ways.opening import of_tensors


def _traced(runs: Runs) -> Runs:
    """Return a way that runs another one in a graph, where control flow becomes operations."""

    def run(function: Function, inputs: Sequence[Any]) -> Any:
        return tf.function(lambda *given: runs(function, given))(*inputs)

    return run


def _cond(function: Function, inputs: Sequence[Any]) -> Any:
    return tf.cond(_always(inputs), lambda: function(*inputs), lambda: function(*inputs))


def _switch_case(function: Function, inputs: Sequence[Any]) -> Any:
    chosen = tf.cast(_always(inputs), tf.int32)
    return tf.switch_case(chosen, [lambda: function(*inputs), lambda: function(*inputs)])


def _always(inputs: Sequence[Any]) -> Any:
    """Return a tensor that is True, which a graph cannot know when it is traced."""
    return tf.size(inputs[0]) >= 0


def _if(function: Function, inputs: Sequence[Any]) -> Any:
    def choose(*given: Any) -> Any:
        if tf.size(given[0]) >= 0:
            return function(*given)
        return function(*given)

    return tf.function(choose)(*inputs)


def _while(function: Function, inputs: Sequence[Any]) -> Any:
    def repeat(*given: Any) -> Any:
        n, result = tf.constant(0), function(*given)
        while n < 2:
            result = function(*given)
            n += 1
        return result

    return tf.function(repeat)(*inputs)


def _for(function: Function, inputs: Sequence[Any]) -> Any:
    def repeat(*given: Any) -> Any:
        result = function(*given)
        for _ in tf.range(2):
            result = function(*given)
        return result

    return tf.function(repeat)(*inputs)


def _while_loop(function: Function, inputs: Sequence[Any]) -> Any:
    start = tf.constant(0), tf.zeros_like(function(*inputs))
    return tf.while_loop(lambda n, _: n < 2, lambda n, _: (n + 1, function(*inputs)), start)[1]


def _map_fn(function: Function, inputs: Sequence[Any]) -> Any:
    result = function(*inputs)
    return tf.map_fn(lambda n: function(*inputs), tf.range(2), fn_output_signature=result.dtype)[1]


def _scan(function: Function, inputs: Sequence[Any]) -> Any:
    start = tf.zeros_like(function(*inputs))
    return tf.scan(lambda before, n: function(*inputs), tf.range(2), initializer=start)[1]


def _foldl(function: Function, inputs: Sequence[Any]) -> Any:
    start = tf.zeros_like(function(*inputs))
    return tf.foldl(lambda before, n: function(*inputs), tf.range(2), initializer=start)


def _vectorized_map(function: Function, inputs: Sequence[Any]) -> Any:
    taking, tensors = of_tensors(function, inputs)
    return tf.vectorized_map(
        lambda given: taking(*given), tuple(tensor[None] for tensor in tensors)
    )[0]


def _py_function(
    function: Function, inputs: Sequence[Any], wrapped: Callable[..., Any] = tf.py_function
) -> Any:
    taking, tensors = of_tensors(function, inputs)
    result = function(*inputs)
    found = wrapped(taking, tensors, result.dtype)
    found.set_shape(result.shape)
    return found


def _numpy_function(function: Function, inputs: Sequence[Any]) -> Any:
    taking, tensors = of_tensors(function, inputs)
    result = function(*inputs)
    return tf.numpy_function(
        lambda *given: taking(*map(tf.constant, given)).numpy(), tensors, result.dtype
    )


def _dataset_map(function: Function, inputs: Sequence[Any]) -> Any:
    taking, tensors = of_tensors(function, inputs)
    return next(iter(tf.data.Dataset.from_tensors(tuple(tensors)).map(taking)))


def _dataset_parallel(function: Function, inputs: Sequence[Any]) -> Any:
    taking, tensors = of_tensors(function, inputs)
    return next(
        iter(
            tf.data.Dataset.from_tensors(tuple(tensors))
            .map(taking, num_parallel_calls=2)
            .prefetch(1)
        )
    )


def _dataset_reduce(function: Function, inputs: Sequence[Any]) -> Any:
    start = tf.zeros_like(function(*inputs))
    return tf.data.Dataset.range(2).reduce(start, lambda before, n: function(*inputs))


def _dataset_scan(function: Function, inputs: Sequence[Any]) -> Any:
    def step(before: Any, n: Any) -> Any:
        return before, function(*inputs)

    return next(iter(tf.data.Dataset.range(2).scan(tf.constant(0), step)))


def _generator(function: Function, inputs: Sequence[Any]) -> Any:
    result = function(*inputs)
    signature = tf.TensorSpec(result.shape, result.dtype)

    def generate() -> Iterator[Any]:
        yield function(*inputs)

    return next(iter(tf.data.Dataset.from_generator(generate, output_signature=signature)))


def ways() -> Iterator[Way]:
    """Yield the ways of control flow."""
    found: dict[str, Runs] = {
        "tf.cond": _traced(_cond),
        "tf.switch_case": _traced(_switch_case),
        "if of AutoGraph": _if,
        "while of AutoGraph": _while,
        "for of AutoGraph": _for,
        "tf.while_loop": _traced(_while_loop),
        "tf.while_loop, eager": _while_loop,
        "tf.map_fn": _traced(_map_fn),
        "tf.map_fn, eager": _map_fn,
        "tf.scan": _traced(_scan),
        "tf.foldl": _traced(_foldl),
        "tf.py_function": _py_function,
        "tf.py_function, in a tf.function": _traced(_py_function),
    }
    for name, runs in found.items():
        promised: dict[str, Any] = {
            "dear": True,
            "equal": "bits" if name.endswith(", eager") else "bound",
        }
        if runs is _py_function:
            promised["upstream"] = {
                "lstm": (
                    "the gradient of an eager tf.py_function raises where an input is whole numbers"
                )
            }
        yield from both(name, "control flow", runs, **promised)
    without_gradients: dict[str, Runs] = {
        "tf.numpy_function": _numpy_function,
        "tf.numpy_function, in a tf.function": _traced(_numpy_function),
        "tf.data map": _dataset_map,
        "tf.data map, parallel": _dataset_parallel,
        "tf.data reduce": _dataset_reduce,
        "tf.data scan": _dataset_scan,
        "tf.data from_generator": _generator,
    }
    for name, runs in without_gradients.items():
        yield from both(name, "control flow", runs, gradients=False, equal="bound", dear=True)
    yield from both("tf.vectorized_map", "transformed", _vectorized_map, equal="bound", dear=True)
