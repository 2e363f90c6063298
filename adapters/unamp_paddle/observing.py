"""Reporting every operation of the vocabulary that runs, for `unamp.trace`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import paddle

from unamp.adapter import OpRecord
from unamp.policy import Rule
from unamp_paddle.casting import tensors
from unamp_paddle.state import thread

if TYPE_CHECKING:
    from unamp_paddle.kernels import Operator

__all__ = ["report"]


def report(op: str, operator: Operator, rule: Rule, run: Callable[[], Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Run one operation and report what it computed in."""
    inputs = tuple(_names([args, kwargs]))
    if operator.activation_only:
        inputs = inputs[:1]
    # What an operation is made of is its own affair.
    sink, thread.sink = thread.sink, None
    try:
        result, computed, emulated = run()
    finally:
        thread.sink = sink
    if paddle.in_dynamic_mode():
        name = None if computed is None else _name(computed)
        outputs = _names(result)
        sink(OpRecord(op, operator.name, rule, inputs, name if inputs else None, next(outputs, None), emulated))
    return result


def _names(value: Any) -> Iterator[str]:
    for tensor in tensors(value):
        name = _name(tensor.dtype)
        if "float" in name:
            yield name


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("paddle.")
