"""Reporting every operation of the vocabulary that runs, for `unamp.trace`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from unamp.adapter import OpRecord
from unamp.policy import Rule
from unamp.vocabulary import vocabulary
from unamp_mindspore.casting import tensors
from unamp_mindspore.state import thread

if TYPE_CHECKING:
    from unamp_mindspore.kernels import Operator

__all__ = ["dtype_name", "observe", "report", "traced"]

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


def report(op: str, operator: Operator, rule: Rule, run: Callable[[], Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Run one operation and report what it computed in."""
    inputs = tuple(_names([args, kwargs, operator.parameters(args)]))
    if operator.activation_only:
        inputs = inputs[:1]
    # What an operation is made of is its own affair.
    sink, thread.sink = thread.sink, None
    try:
        result, computed, emulated = run()
    finally:
        thread.sink = sink
    name = None if computed is None or not inputs else dtype_name(computed)
    sink(OpRecord(op, operator.name, rule, inputs, name, next(_names(result), None), emulated))
    return result


def _names(value: Any) -> Iterator[str]:
    for tensor in tensors(value):
        name = dtype_name(tensor.dtype)
        if "float" in name:
            yield name


def dtype_name(dtype: Any) -> str:
    """The common name of one of MindSpore's dtypes."""
    return str(dtype).lower()
