"""The code that runs in place of one of MindSpore's operations while a region is open.

MindSpore submits an operation in three microseconds. So this code is written for the arguments that the original takes:
nothing is gathered that would only be spread again, and a call that no rule changes is found out without calling anything.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any

from unamp.adapter.replacing import code_of
from unamp_mindspore.operators import Operator
from unamp_mindspore.state import Tensor, thread

__all__ = ["code", "function"]

#: What is no tensor, and need not be asked: that takes longer than all else.
_HARMLESS = frozenset((int, float, bool, str, type(None)))

_EXACT = """
def stand_in({parameters}):
    plan = STATE.plan
    if plan is None:
        return {call}
    if NAME not in plan.changes_float32{wide}:
        {called}
    return plan.carry_out(OPERATOR, ({positional}), {{{named}}})
"""
#: A number of two bytes may be low. To ask for the dtype takes twice as long.
_WIDE = """ and (
        {0} is None or ({0}._itemsize != 2 if type({0}) is TENSOR else type({0}) in HARMLESS or WIDE({0}))
    )"""

_ANY = """
def stand_in(*args, **kwargs):
    plan = STATE.plan
    if plan is None:
        return {call}
    if NAME not in plan.changes_float32{wide}:
        for value in (*args, *kwargs.values()) if kwargs else args:
            if type(value) is TENSOR:
                if value._itemsize == 2:
                    break
            elif type(value) not in HARMLESS and not WIDE(value):
                break
        else:
            {called}
    return plan.carry_out(OPERATOR, args, kwargs)
"""

#: What an operation is made of follows no rule.
_ALONE = """STATE.plan = plan.inside
{indent}try:
{indent}    return {call}
{indent}finally:
{indent}    STATE.plan = plan"""


def code(operator: Operator, original: types.FunctionType) -> types.CodeType:
    """Return the code that runs in place of a function of Python code.

    Args:
        operator: the operation; its `call` is the original as a function of its own.
        original: the function.
    """
    own = original.__code__
    composed, constants, closed_over = not _leads_out(own), _constants(operator), len(own.co_freevars)
    if own.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS) or own.co_posonlyargcount or _says_dtype(original):
        return code_of(_any(operator, composed), constants, closed_over=closed_over)
    names = own.co_varnames[: own.co_argcount + own.co_kwonlyargcount]
    made = code_of(_exact(operator, names, own.co_argcount, composed), constants, closed_over=closed_over)
    return made.replace(co_varnames=(*names, *made.co_varnames[len(names) :]))  # callers may use the names


def function(operator: Operator, arguments: int | None = None) -> Callable[..., Any]:
    """Return the replacement of what has no code of its own to exchange.

    Args:
        operator: the operation; its `call` is the original.
        arguments: how many arguments it takes; None where that is not known.
    """
    composed = isinstance(operator.call, types.FunctionType)
    if arguments is None:
        source = _any(operator, composed)
    else:
        source = _exact(operator, [f"given_{n}" for n in range(arguments)], arguments, composed)
    return types.FunctionType(code_of(source, _constants(operator)), globals(), operator.name.rpartition(".")[2])


def _exact(operator: Operator, names: Sequence[str], positional: int, composed: bool) -> str:
    """Return the source for a signature: its arguments by their names, of which those behind so many are keywords only.

    The arguments have names of our own in it, so that many signatures share one source.
    """
    given = [f"given_{n}" for n in range(len(names))]
    pairs = list(zip(names, given, strict=True))
    call = f"CALL({', '.join([*given[:positional], *(f'{name}={value}' for name, value in pairs[positional:])])})"
    # A dtype is handed over by its name: a rule asks whether somebody named one.
    by_name = min(positional, names.index("dtype")) if "dtype" in names else positional
    return _EXACT.format(
        parameters=", ".join([*given[:positional], "*", *given[positional:]] if positional < len(names) else given),
        call=call,
        wide=_layer_check(operator, given[0]) + "".join(map(_WIDE.format, given[1:] if operator.bound else given)),
        called=_called(composed, call, 8),
        positional="".join(f"{value}, " for value in given[:by_name]),
        named=", ".join(f"{name!r}: {value}" for name, value in pairs[by_name:]),
    )


def _any(operator: Operator, composed: bool) -> str:
    """Return the source for any arguments."""
    call = "CALL(*args, **kwargs) if kwargs else CALL(*args)"
    return _ANY.format(wide=_layer_check(operator, "args[0]"), call=call, called=_called(composed, call, 12))


def _called(composed: bool, call: str, indent: int) -> str:
    return (_ALONE if composed else "return {call}").format(call=call, indent=" " * indent)


def _layer_check(operator: Operator, cell: str) -> str:
    return f" and HIGH({cell})" if operator.layer else ""


def _constants(operator: Operator) -> dict[str, Any]:
    return {
        "STATE": thread, "CALL": operator.call, "NAME": operator.name, "OPERATOR": operator, "TENSOR": Tensor,
        "HARMLESS": _HARMLESS, "WIDE": _is_wide, "HIGH": _has_wide,
    }  # fmt: skip


def _leads_out(own: types.CodeType) -> bool:
    """Return whether a function calls C++ and nothing else that could be an operation: generated code does."""
    names = own.co_names
    return any(name.startswith("pyboost_") for name in names) or (len(names) == 1 and names[0].endswith("_instance"))


def _says_dtype(original: types.FunctionType) -> bool:
    """Return whether a function names a dtype where its caller names none."""
    if "dtype" not in original.__code__.co_varnames:  # the signature takes its time
        return False
    dtype = inspect.signature(original).parameters.get("dtype")
    return dtype is not None and dtype.default not in (None, inspect.Parameter.empty)


def _is_wide(value: Any) -> bool:
    """Return whether there is no low tensor in an argument."""
    kind = type(value)
    if kind is tuple or kind is list:
        for item in value:
            if type(item) is Tensor:
                if item._itemsize == 2:
                    return False
            elif type(item) not in _HARMLESS and not _is_wide(item):
                return False
        return True
    if kind is dict:
        return _is_wide(list(value.values()))
    return kind in _HARMLESS or not isinstance(value, Tensor) or value._itemsize != 2


def _has_wide(cell: Any) -> bool:
    """Return whether a layer surely has no low parameter; with other cells in it that is a longer question."""
    if cell._cells or not cell._params:
        return not cell._cells
    own = vars(cell)  # what somebody set over a parameter goes before it, as for whoever asks the cell
    return all(_is_wide(own.get(name, value)) for name, value in cell._params.items())
