"""Functions of MindSpore that only hand their arguments on: what they call is exchanged, so they need not be.

Their source is read, which says the same on every Python; bytecode is another with every release.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
import types
from typing import Any

import mindspore
from mindspore.common._register_for_tensor import tensor_operator_registry

from unamp.errors import FrameworkNotSupported

__all__ = ["calls_super", "handed_to", "spread_to"]


def handed_to(function: types.FunctionType) -> Any:
    """Return the callee of a function that does nothing but call it with its own arguments and constants, else None.

    Raises:
        FrameworkNotSupported: where MindSpore came without its source.
    """
    code = function.__code__
    if code.co_nlocals > _arguments(code) or len(code.co_names) > _DEEP:
        return None
    call = _only_call(function)
    if call is None or not all(_is_given(value, code) for value in _values(call)):
        return None
    return _meant(call.func, function)


def spread_to(function: types.FunctionType) -> Any:
    """Return the C++ callee of a function that does nothing else, whatever its arguments are; None for other functions.

    Raises:
        FrameworkNotSupported: where MindSpore came without its source.
    """
    code = function.__code__
    if code.co_flags & _ANY != _ANY or _arguments(code) != 2:
        return None
    match _only_call(function):
        case ast.Call(func, [ast.Starred(ast.Name(args))], [ast.keyword(None, ast.Name(kwargs))]):
            target = _meant(func, function) if (args, kwargs) == code.co_varnames[:2] else None
            return None if isinstance(target, types.FunctionType) else target
    return None


def calls_super(method: types.FunctionType) -> bool:
    """Return whether a method does nothing but call the inherited one with arguments, attributes of them, and constants.

    Raises:
        FrameworkNotSupported: where MindSpore came without its source.
    """
    call = _only_call(method) if "super" in method.__code__.co_names else None
    if call is None:
        return False
    match call.func:
        case ast.Attribute(ast.Call(ast.Name("super"), [], []), name) if name == method.__name__:
            return all(_is_given(_stem(value), method.__code__) for value in _values(call))
    return False


_ANY = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS

#: So many names lead to a function at most, through modules. To read a function takes a tenth of a millisecond, so those that
#: look up more, or have variables of their own, are not read.
_DEEP = 4


def _arguments(code: types.CodeType) -> int:
    """Return the number of of a function's variables are its arguments."""
    spread = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_argcount + code.co_kwonlyargcount + spread


def _only_call(function: types.FunctionType) -> ast.Call | None:
    """Return the call whose result a function returns, where it does nothing else."""
    definition = _definition(function)
    body = definition.body if definition else []
    if len(body) == 2 and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        del body[0]  # what it says of itself
    match body:
        case [ast.Return(ast.Call() as call)]:
            return call
    return None


def _definition(function: types.FunctionType) -> ast.FunctionDef | None:
    """Return a function's definition; None for one that was made by running a string, and for a lambda."""
    code = function.__code__
    if code.co_filename.startswith("<"):
        return None
    lines = linecache.getlines(code.co_filename, function.__globals__)
    if not lines:
        raise FrameworkNotSupported(
            f"mindspore {mindspore.__version__} has no source of {function.__module__}.{function.__qualname__}, "
            "which unamp needs"
        )
    # The last line that computes something may leave brackets open, which those after it close.
    for end in range(max(line for *_, line in code.co_lines() if line), len(lines) + 1):
        try:
            (statement,) = ast.parse(textwrap.dedent("".join(lines[code.co_firstlineno - 1 : end]))).body
        except SyntaxError:
            continue
        return statement if isinstance(statement, ast.FunctionDef) and statement.name == code.co_name else None
    return None


def _values(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _is_given(value: ast.expr, code: types.CodeType) -> bool:
    """Return whether an expression is one of a function's arguments, or a constant."""
    if isinstance(value, ast.Name):
        return value.id in code.co_varnames
    return _is_constant(value)


def _is_constant(value: ast.expr) -> bool:
    if isinstance(value, ast.Tuple):
        return all(map(_is_constant, value.elts))
    return isinstance(value.operand if isinstance(value, ast.UnaryOp) else value, ast.Constant)


def _stem(value: ast.expr) -> ast.expr:
    while isinstance(value, ast.Attribute):
        value = value.value
    return value


def _meant(called: ast.expr, function: types.FunctionType) -> Any:
    """Return the object that an expression stands for: a global, its attributes, an entry of MindSpore's registry; or None."""
    match called:
        case ast.Name(name):
            return None if name in function.__code__.co_varnames else function.__globals__.get(name)
        case ast.Attribute(of, name):
            return getattr(_meant(of, function), name, None)
        case ast.Call(of, [ast.Constant(str(name))], []) if _meant(of, function) == tensor_operator_registry.get:
            return getattr(tensor_operator_registry, name, None)
    return None
