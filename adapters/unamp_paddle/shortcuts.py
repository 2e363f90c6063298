"""The commonest calls in fewer steps.

Nearly all calls in a region have tensors and numbers for arguments. What `kernels.perform` does about those can be told from
the operation and its rule, before any call; what is left are the tensors' dtypes. Beside a narrow layer's small products the
steps that this saves can be seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
from paddle.base import core

from unamp.policy import Rule
from unamp_paddle.calls import Operator, how_to_round, quietly, runs_natively
from unamp_paddle.casting import cast, lowered
from unamp_paddle.rounding import follow
from unamp_paddle.state import FLOAT32, LOW, Parameter, Tensor

__all__ = ["shortcut"]

_CPU_ONLY = not core.is_compiled_with_cuda()
_in_dynamic_mode = paddle.in_dynamic_mode
_FLOAT16, _BFLOAT16 = LOW
_TENSORS = frozenset({Tensor, Parameter})
_NUMBERS = frozenset({int, bool, float, type(None)})


def shortcut(operator: Operator, rule: Rule) -> Callable[..., Any] | None:
    """What carries out a rule for the commonest calls of an operation: the same as `perform` does, in fewer steps.

    Returns:
        A function of the operation, the low dtype and the arguments, which gives NotImplemented for calls of other kinds. None
        where all calls are left to `perform`.
    """
    if not (_CPU_ONLY and operator.plain):
        return None
    if operator.view:
        return _moved if not operator.whole and rule in (Rule.UNTOUCHED, Rule.WIDEST) else None
    return {Rule.LOW: _lowest, Rule.FP32: _widened, Rule.WIDEST: _widest}.get(rule)


def _dtypes(args: Any, kwargs: dict[str, Any]) -> list[Any]:
    """The dtypes of the tensors; none where there are arguments other than eligible tensors and numbers."""
    seen = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        kind = type(value)
        if kind is Tensor or kind is Parameter:
            dtype = value.dtype
            if dtype is not FLOAT32 and dtype is not _FLOAT16 and dtype is not _BFLOAT16:
                return []
            seen.append(dtype)
        elif kind not in _NUMBERS:
            return []
    return [] if kwargs and kwargs.get("out") is not None else seen


def _lowest(operator: Operator, low: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    seen = _dtypes(args, kwargs)
    return _emulated(operator, low, seen, args, kwargs) if seen else NotImplemented


def _widest(operator: Operator, low: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    seen = _dtypes(args, kwargs)
    if not seen:
        return NotImplemented
    if seen.count(seen[0]) == len(seen) and seen[0] is not FLOAT32:
        return _emulated(operator, seen[0], seen, args, kwargs)
    return _called(operator, cast, FLOAT32, args, kwargs)


def _widened(operator: Operator, low: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    return _called(operator, cast, FLOAT32, args, kwargs) if _dtypes(args, kwargs) else NotImplemented


def _emulated(operator: Operator, low: Any, seen: list[Any], args: Any, kwargs: dict[str, Any]) -> Any:
    return lowered(_called(operator, how_to_round(operator, seen), low, args, kwargs), low, operator.rounded)


def _called(operator: Operator, to: Callable[[Any, Any], Any], dtype: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Call the original with its tensors in another dtype."""
    args = [to(value, dtype) if type(value) in _TENSORS else value for value in args]
    if kwargs:
        kwargs = {name: to(value, dtype) if type(value) in _TENSORS else value for name, value in kwargs.items()}
    return quietly(operator, None, args, kwargs) if operator.whole else operator.call(*args, **kwargs)


def _moved(operator: Operator, low: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation that moves data only, on one tensor in any low dtype."""
    if kwargs or not args or type(args[0]) not in _TENSORS:
        return NotImplemented
    for value in args[1:]:
        kind = type(value)
        if kind not in _NUMBERS and (kind is not list or (value and type(value[0]) is not int)):
            return NotImplemented
    dtype = args[0].dtype
    if (dtype is not _FLOAT16 and dtype is not _BFLOAT16) or not _in_dynamic_mode() or not runs_natively(operator, dtype):
        return NotImplemented
    result = operator.call(*args)
    follow(args[0], result)
    return result
