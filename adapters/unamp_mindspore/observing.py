"""Reporting every operation of the vocabulary that runs, for `unamp.trace`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from unamp.adapter import OpRecord
from unamp.policy import Rule
from unamp_mindspore.casting import tensors
from unamp_mindspore.state import thread

if TYPE_CHECKING:
    from unamp_mindspore.kernels import Operator

__all__ = ["dtype_name", "report"]


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
