"""Reporting every operation of the vocabulary that runs, for `unamp.trace`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from unamp.adapter import OpRecord
from unamp.policy import Rule
from unamp_tensorflow.state import NAMES, thread

if TYPE_CHECKING:
    from unamp_tensorflow.kernels import Action

__all__ = ["report", "report_whole"]


def report(action: Action, run: Callable[[], Any], given: list[Any]) -> Any:
    """Execute one operation type and report what it computed in."""
    op_type = action.op_type
    target, emulated = action.target(given)
    result = run()
    inputs = tuple(_names(given))
    computed = NAMES[target] if target else inputs[0] if inputs else None
    assert op_type.op is not None
    _send(op_type.op, op_type.name, action.stated, inputs, computed, result, emulated)
    return result


def report_whole(op: str, native: str, rule: Rule, run: Callable[[], Any], given: list[Any]) -> Any:
    """Run a function or layer that is one operation, and report it and nothing inside."""
    sink, thread.sink = thread.sink, None
    try:
        result, target, emulated = run()
    finally:
        thread.sink = sink
    inputs = tuple(_names(given))
    _send(op, native, rule, inputs, NAMES[target] if target else inputs[0] if inputs else None, result, emulated)
    return result, target, emulated


def _send(op: str, native: str, rule: Rule, inputs: tuple[str, ...], computed: str | None, result: Any, emulated: bool) -> None:
    if tf.executing_eagerly():  # a node that is added to a graph does not compute
        thread.sink(OpRecord(op, native, rule, inputs, computed if inputs else None, next(_names([result]), None), emulated))


def _names(values: Any) -> Iterator[str]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _names(value)
        elif isinstance(value, dict):
            yield from _names(value.values())
        elif (dtype := getattr(value, "dtype", None)) is not None and hasattr(value, "shape"):
            name = tf.as_dtype(dtype).name
            if "float" in name:
                yield name
