"""Reporting every operation of the vocabulary that runs, for `unamp.trace`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from unamp import observing
from unamp._capturing import not_converted
from unamp.observing import InUse, Layers, Observer, casts, follow_calls
from unamp.policy import Rule
from unamp.records import OpRecord, Values
from unamp_tensorflow.replacing import Method
from unamp_tensorflow.spellings import keras_in_use
from unamp_tensorflow.state import NAMES, thread

if TYPE_CHECKING:
    from unamp_tensorflow.kernels import Action

__all__ = ["observe", "report", "report_whole"]


@cache
def _layers() -> InUse:
    # Another method, not other code in Keras's own: AutoGraph reads the source of what it meets.
    change = Method(tf.keras.layers.Layer, "__call__", lambda own: not_converted(follow_calls(thread)(own)))
    return InUse(change.put_in, change.take_out)


def _none(network: Any) -> Iterable[tuple[str, Any]]:
    return ()  # a layer of Keras has a name of its own


@contextmanager
def observe(
    sink: Callable[[OpRecord], None], values: bool, watched: Callable[[], Any], release: Callable[[], None]
) -> Iterator[None]:
    """Report the operations of this thread to `sink`; see `unamp.observing.observe`."""

    def observer(layers: Layers | None) -> Observer:
        return Observer("tensorflow", sink, values, layers or Layers(_none, lambda layer: str(layer.name)))

    with _layers().used() if keras_in_use() else nullcontext(), observing.observe(thread, observer, watched, release):
        yield


def report(action: Action, run: Callable[[], Any], given: list[Any]) -> Any:
    """Execute one operation type and report what it computed in."""
    op_type = action.op_type
    target, emulated = action.target(given)
    result = run()
    floating = _floating(given)
    assert op_type.op is not None
    _send(op_type.op, op_type.name, action.stated, floating, target, result, emulated)
    return result


def report_whole(op: str, native: str, rule: Rule, run: Callable[[], Any], given: list[Any]) -> Any:
    """Run a function or layer that is one operation, and report it and nothing inside."""
    sink, thread.sink = thread.sink, None
    try:
        result, target, emulated = run()
    finally:
        thread.sink = sink
    _send(op, native, rule, _floating(given), target, result, emulated)
    return result, target, emulated


def _send(op: str, native: str, rule: Rule, given: list[Any], target: int, result: Any, emulated: bool) -> None:
    if not tf.executing_eagerly():  # a node that is added to a graph does not compute
        return
    inputs = tuple(_name(tensor) for tensor in given)
    compute = NAMES[target] if target and inputs else inputs[0] if inputs else None
    found = _floating([result])
    results = _sizes(found)
    count, moved = casts(rule, _sizes(given), compute, results[:1])
    output = results[0][0] if results else None
    record = OpRecord(op, native, rule, inputs, compute, output, emulated, casts=count, cast_bytes=moved)
    thread.sink.report(record, lambda: _values(found))


def _values(found: list[Any]) -> Values | None:
    # NumPy alone: no operation runs.
    arrays = [np.asarray(tensor.numpy() if hasattr(tensor, "numpy") else tensor).astype("float64") for tensor in found]
    return Values.of(arrays[0].shape, [array.reshape(-1) for array in arrays]) if arrays else None


def _floating(values: Any) -> list[Any]:
    return [value for value in _tensors(values) if "float" in _name(value)]


def _tensors(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _tensors(value)
        elif isinstance(value, dict):
            yield from _tensors(value.values())
        elif getattr(value, "dtype", None) is not None and hasattr(value, "shape"):
            yield value


def _name(tensor: Any) -> str:
    return tf.as_dtype(tensor.dtype).name


def _sizes(floating: list[Any]) -> list[tuple[str, int]]:
    return [(_name(tensor), math.prod(tensor.shape)) for tensor in floating]
