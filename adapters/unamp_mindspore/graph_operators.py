"""Python's operators as functions, for MindSpore's compiler.

The compiler resolves the operators themselves in C++, where no policy reaches them.
"""

# mypy: ignore-errors

from __future__ import annotations

import ast
import operator

from mindspore import ops

from unamp._function_types import Function
from unamp_mindspore.graph_calls import cast_found, cast_like, unbound
from unamp_mindspore.state import DTYPES, FLOAT32, Tensor

_BFLOAT16 = DTYPES["bfloat16"]


@unbound
def subscript(value, index):
    """Return part of a value."""
    return value[index]


@unbound
def itself(value):
    """Return a value as it is: the call's rule may cast it."""
    return value


@unbound
def with_item(value, index, item):
    """Return a value with an item set."""
    value[index] = item
    return value


@unbound
def _transposed(value):
    return value.T


@unbound
def gradients_added(x, y):
    """Return the sum of two gradients of one tensor; the CPU's kernel takes no bfloat16."""
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


def vectors_like_results(call: Function) -> Function:
    """Return the function that makes the vectors of `jacrev` in the dtypes of the results.

    MindSpore's own makes float32 ones.
    """

    @unbound
    def unamp_vectors(inputs, outputs, has_aux):
        primals, vectors, shapes = call(inputs, outputs, has_aux)
        if isinstance(outputs, Tensor):
            return primals, cast_like(vectors, outputs), shapes
        return primals, gradients_like(vectors, outputs), shapes

    return unamp_vectors


def vectors_like_products(call: Function) -> Function:
    """Return a function like `mindspore.vjp`, which casts vectors to the dtypes of the results."""

    @unbound
    def unamp_vjp(function, *inputs, weights=None, has_aux=False):
        found = call(function, *inputs, weights=weights, has_aux=has_aux)

        def with_vectors(*vectors):
            if isinstance(found[0], tuple):
                return found[1](*gradients_like(vectors, found[0]))
            return found[1](cast_like(vectors[0], found[0]))

        return (found[0], with_vectors, *found[2:])

    return unamp_vjp


@unbound
def _with_wide_vector(args, kwargs):
    if "sens" in kwargs:
        kwargs["sens"] = cast_found(FLOAT32, kwargs["sens"])
        return args, kwargs
    return (*args[:-1], cast_found(FLOAT32, args[-1])), kwargs


def taking_vectors(gradient: Function) -> Function:
    """Return an `ops.GradOperation` that takes float32 vectors where results are low.

    It gets the function with its results in float32: the gradient of that cast makes vectors low.
    """

    # The compiler counts the arguments only where the operation and its result are called at once.
    # One function with `*weights` for both does not compile.
    @unbound
    def unamp_gradient(function):
        def widened(*args, **kwargs):
            return cast_found(FLOAT32, function(*args, **kwargs))

        def computed(*args, **kwargs):
            given, named = _with_wide_vector(args, kwargs)
            return gradient(widened)(*given, **named)

        return computed

    @unbound
    def unamp_gradient_of_weights(function, weights):
        def widened(*args, **kwargs):
            return cast_found(FLOAT32, function(*args, **kwargs))

        def computed(*args, **kwargs):
            given, named = _with_wide_vector(args, kwargs)
            return gradient(widened, weights)(*given, **named)

        return computed

    return unamp_gradient_of_weights if gradient.get_by_list else unamp_gradient


#: Attributes of a tensor that are computed, and the functions that compute them.
ATTRIBUTES: dict[str, Function] = {"T": _transposed}

#: The operation of each operator, and the function for it that the compiler knows.
OPERATORS: dict[type[ast.AST], tuple[str, Function]] = {
    ast.Add: ("add", operator.add),
    ast.Sub: ("sub", operator.sub),
    ast.Mult: ("mul", operator.mul),
    ast.Div: ("div", operator.truediv),
    ast.FloorDiv: ("floor_divide", operator.floordiv),
    ast.Mod: ("remainder", operator.mod),
    ast.Pow: ("pow", pow),
    ast.MatMult: ("matmul", operator.matmul),
    ast.USub: ("neg", operator.neg),
    ast.Lt: ("lt", operator.lt),
    ast.LtE: ("le", operator.le),
    ast.Gt: ("gt", operator.gt),
    ast.GtE: ("ge", operator.ge),
    ast.Eq: ("eq", operator.eq),
    ast.NotEq: ("ne", operator.ne),
}

#: Python's functions that compute with a tensor, by name, which is that of the operation, too.
BUILTINS: dict[str, Function] = {"abs": abs, "round": round}
