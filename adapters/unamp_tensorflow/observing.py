"""Reporting every operation of the vocabulary that runs, for `unamp.trace`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from unamp.adapter import OpRecord
from unamp.policy import Rule
from unamp.vocabulary import vocabulary
from unamp_tensorflow.state import NAMES, thread

if TYPE_CHECKING:
    from unamp_tensorflow.kernels import Action

__all__ = ["observe", "report", "report_whole", "traced"]

#: Groups that are not reported: they move data or make it, in whatever dtype they are told.
_NOT_TRACED = frozenset({"shape", "creation", "random", "cast"})


@cache
def traced(op: str | None) -> bool:
    """Whether an operation is reported."""
    return op is not None and vocabulary()[op].group not in _NOT_TRACED


@contextmanager
def observe(sink: Callable[[OpRecord], None], watched: Callable[[], Any], release: Callable[[], None]) -> Iterator[None]:
    """Report the operations of this thread to `sink`; an outer observer waits.

    Args:
        sink: takes the records.
        watched: makes everything known that can be reported, and gives the plan for where no region is open.
        release: undoes that.
    """
    idle = watched()
    before, thread.sink = thread.sink, sink
    plan = thread.plan
    thread.plan = idle if plan is None else plan.watched
    try:
        yield
    finally:
        thread.sink, thread.plan = before, plan
        release()


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
