"""Reporting every operation of the vocabulary that runs, for `unamp.trace`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from unamp._compiler_marks import not_converted
from unamp.adapter import observing
from unamp.adapter.observer import Layers, Observer
from unamp.adapter.observing import Reporter, follow_calls, unreported
from unamp.adapter.patching import Patches
from unamp.adapter.records import OpRecord
from unamp.adapter.replacing import AttributePatch
from unamp.policy import Rule
from unamp_tensorflow.spellings import keras_in_use
from unamp_tensorflow.state import NAMES, thread

if TYPE_CHECKING:
    from unamp_tensorflow.calls import Action

__all__ = ["observe", "report", "report_whole"]


@cache
def _layers() -> Patches:
    # Another method, not other code in Keras's own: AutoGraph reads the source of what it meets.
    follow = follow_calls(thread)
    call = AttributePatch(tf.keras.layers.Layer, "__call__", lambda own: not_converted(follow(own)))
    return Patches(lambda: (call,))


def _none(network: Any) -> Iterable[tuple[str, Any]]:
    return ()  # a layer of Keras has a name of its own


@contextmanager
def observe(
    sink: Callable[[OpRecord], None], values: bool, unchanging: Callable[[], Any], release: Callable[[], None]
) -> Iterator[None]:
    """Report the operations of this thread to `sink`; see `unamp.adapter.observing.observe`."""
    observer = Observer("tensorflow", sink, values, Layers(_none, lambda layer: str(layer.name)))
    with observing.observe(thread, observer, _layers() if keras_in_use() else None, unchanging, release):
        yield


def report(action: Action, run: Callable[[], Any], given: list[Any]) -> Any:
    """Execute one operation type and report what it computed in."""
    op_type = action.op_type
    target, emulated = action.target(given)
    result = run()
    assert op_type.op is not None
    _send(thread.sink, op_type.op, op_type.name, action.stated, given, target, result, emulated)
    return result


def report_whole(op: str, native: str, rule: Rule, run: Callable[[], Any], given: list[Any]) -> Any:
    """Run a function or layer that is one operation, and report it and nothing inside."""
    with unreported(thread) as observer:
        result, target, emulated = run()
    _send(observer, op, native, rule, given, target, result, emulated)
    return result, target, emulated


def _send(
    observer: Observer, op: str, native: str, rule: Rule, given: list[Any], target: int, result: Any, emulated: bool
) -> None:
    if not tf.executing_eagerly():  # a node that is added to a graph does not compute
        return
    floating = _reporter.floating(given)
    inputs = _reporter.dtypes(floating)
    compute = NAMES[target] if target and inputs else inputs[0] if inputs else None
    record = OpRecord(op, native, rule, inputs, compute, None, emulated)
    _reporter.report(observer, record, _reporter.sizes(floating), result, first_only=True)


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for inner in value:
            yield from _tensors(inner)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif getattr(value, "dtype", None) is not None and hasattr(value, "shape"):
        yield value


def _numbers(tensor: Any) -> Any:
    # NumPy alone: no operation runs.
    return np.asarray(tensor.numpy() if hasattr(tensor, "numpy") else tensor).astype("float64").reshape(-1)


_reporter = Reporter(_tensors, lambda tensor: tf.as_dtype(tensor.dtype).name, _numbers)
