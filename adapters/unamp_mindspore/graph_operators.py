"""Operators of Python as functions, for the compiler, which chooses what they come to in C++, out of reach of policies."""

# mypy: ignore-errors

from __future__ import annotations

import ast

from mindspore import ops

from unamp_mindspore.graph_calls import cast_like, unbound
from unamp_mindspore.state import DTYPES, FLOAT32

__all__ = ["ATTRIBUTES", "OPERATORS", "gradients_added", "gradients_like", "subscript"]

_BFLOAT16 = DTYPES["bfloat16"]


@unbound
def _add(a, b):
    return a + b


@unbound
def _sub(a, b):
    return a - b


@unbound
def _mul(a, b):
    return a * b


@unbound
def _div(a, b):
    return a / b


@unbound
def _floor_divide(a, b):
    return a // b


@unbound
def _remainder(a, b):
    return a % b


@unbound
def _pow(a, b):
    return a**b


@unbound
def _matmul(a, b):
    return a @ b


@unbound
def _neg(a):
    return -a


@unbound
def _lt(a, b):
    return a < b


@unbound
def _le(a, b):
    return a <= b


@unbound
def _gt(a, b):
    return a > b


@unbound
def _ge(a, b):
    return a >= b


@unbound
def _eq(a, b):
    return a == b


@unbound
def _ne(a, b):
    return a != b


@unbound
def subscript(value, index):
    """Return part of a value."""
    return value[index]


@unbound
def _transposed(value):
    return value.T


@unbound
def gradients_added(x, y):
    """Return the sum of two gradients of one tensor: the CPU's kernel for it has no bfloat16."""
    if x.dtype == _BFLOAT16:
        return ops.cast(ops.addn((ops.cast(x, FLOAT32), ops.cast(y, FLOAT32))), _BFLOAT16)
    return ops.addn((x, y))


@unbound
def gradients_like(gradients, inputs):
    """Return the gradients of a cell's `bprop`, each in the dtype of its input."""
    if not isinstance(gradients, tuple):
        return cast_like(gradients, inputs[0])
    made = ()
    for i in range(len(gradients)):
        made += (cast_like(gradients[i], inputs[i]),)
    return made


#: Attributes of a tensor that are computed, and a function that does.
ATTRIBUTES = {"T": _transposed}

#: The operation of each operator, and a function that computes it.
OPERATORS = {
    ast.Add: ("add", _add),
    ast.Sub: ("sub", _sub),
    ast.Mult: ("mul", _mul),
    ast.Div: ("div", _div),
    ast.FloorDiv: ("floor_divide", _floor_divide),
    ast.Mod: ("remainder", _remainder),
    ast.Pow: ("pow", _pow),
    ast.MatMult: ("matmul", _matmul),
    ast.USub: ("neg", _neg),
    ast.Lt: ("lt", _lt),
    ast.LtE: ("le", _le),
    ast.Gt: ("gt", _gt),
    ast.GtE: ("ge", _ge),
    ast.Eq: ("eq", _eq),
    ast.NotEq: ("ne", _ne),
}
