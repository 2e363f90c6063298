"""The source of a bound function, rewritten: operators and methods of tensors become functions.

MindSpore's compiler resolves operators and methods in C++, by the types of their operands, where no
policy reaches them. Functions are found by name, and follow rules.
"""

from __future__ import annotations

import ast
import copy
import types
from collections.abc import Mapping
from typing import Any, TypeVar

from unamp_mindspore.graph_operators import OPERATORS
from unamp_mindspore.state import NAMES, Parameter, Tensor

NodeT = TypeVar("NodeT", bound=ast.AST)

#: The name, in rewritten code, of the function that casts a layer's parameters where they are used.
CONVERTED = "unamp_parameter"

#: The value of an expression whose value is only known in the graph.
_UNKNOWN = object()

#: Expressions whose value is no tensor: constants, and displays of lists, tuples and the like.
_PLAIN = (ast.Constant, ast.JoinedStr, ast.Dict, ast.List, ast.Tuple, ast.Set)

#: Attributes of tensors and cells that are no tensors.
_ABOUT = frozenset({"dtype", "shape", "ndim", "size", "itemsize", "name", "training"})

#: Parameters of a batch norm that its primitive updates. They are left out here: the function that
#: replaces the primitive casts them, and writes the updated values back.
STATISTICS = frozenset({"moving_mean", "moving_variance"})


def rewritten(
    tree: ast.Module, function: types.FunctionType, owner: object, names: Mapping[str, object]
) -> ast.Module:
    """Return a function's source with operators and methods as functions.

    Args:
        tree: the source, which is not changed: the compiler keeps it by its text, for any policy.
        owner: the object of which the function is a method; None for a plain function.
    """
    return _Rewriter(function, owner, names).visit(copy.deepcopy(tree))  # type: ignore[no-any-return]


def with_cast_gradients(tree: ast.Module) -> ast.Module:
    """Return the source of a cell's `bprop`, changed to cast each gradient to its input's dtype.

    This is as in PyNative mode.
    """
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    given = function.args
    inputs: list[ast.expr] = [_name(each.arg, function) for each in given.args[1:]]  # without self
    if given.vararg is not None:
        inputs.append(_placed(ast.Starred(_name(given.vararg.arg, function), ast.Load()), function))
    # The first statement, since the body may rebind the names. The last two arguments are the
    # result and its gradient, which `gradients_like` does not reach.
    kept = _placed(ast.Tuple(inputs, ast.Load()), function)
    function.body.insert(0, _assigned("unamp_inputs", kept, function))
    _Returns().generic_visit(function)
    return tree


class _Returns(ast.NodeTransformer):
    """Casts the results of a function to the dtypes of its inputs."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node  # a `return` of an inner function is not one of the `bprop`

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        if node.value is not None:
            node.value = _call(node, "unamp_gradients", [node.value, _name("unamp_inputs", node)])
        return node


class _Once(ast.NodeTransformer):
    """Replaces calls in an index by variables; `assigned` holds the statements that set these."""

    def __init__(self, statement: ast.stmt) -> None:
        self._statement = statement
        self.assigned: list[ast.stmt] = []

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, (ast.Slice, ast.Tuple)):
            return self.generic_visit(node)
        if not isinstance(node, ast.expr) or not _has(node, ast.Call):
            return node
        name = f"unamp_index_{len(self.assigned)}"
        self.assigned.append(_assigned(name, node, self._statement))
        return _name(name, node)


class _Rewriter(ast.NodeTransformer):
    def __init__(
        self, function: types.FunctionType, owner: object, names: Mapping[str, object]
    ) -> None:
        self._names = names
        self._owner = owner
        self._local = frozenset(_locals(function.__code__))
        closed = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        self._known = {**function.__globals__, **{name: _content(cell) for name, cell in closed}}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        body = ast.Module(node.body, [])
        self.generic_visit(body)  # not decorators, defaults and annotations
        node.body = body.body
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        return self._operation(node, node.op, [node.left, node.right])

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return self._operation(node, node.op, [node.operand])

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        return (
            self._operation(node, node.ops[0], [node.left, *node.comparators])
            if len(node.ops) == 1
            else node
        )

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        return self._item_set(node, node.targets[0], node.value) if len(node.targets) == 1 else node

    def _item_set(self, node: ast.stmt, target: ast.expr, value: ast.expr) -> ast.stmt:
        """Return the assignment that sets an item of a variable.

        It gives the variable a new tensor, as the compiler itself does.
        """
        if "unamp_item_set" not in self._names or not isinstance(target, ast.Subscript):
            return node
        of = target.value
        if not isinstance(of, ast.Name) or of.id not in self._local:
            return node
        return _assigned(of.id, _call(node, "unamp_item_set", [of, target.slice, value]), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST | list[ast.AST]:
        target = node.target
        if not isinstance(target, ast.Subscript) or not _has(target.slice, ast.Call):
            return self._changed(node)
        # The index is evaluated twice below, and a call in it may draw numbers.
        once = _Once(node)
        target.slice = once.visit(target.slice)
        return [*map(self.visit, once.assigned), self._changed(node)]

    def _changed(self, node: ast.AugAssign) -> ast.AST:
        node.value = self.visit(node.value)
        if not isinstance(node.target, (ast.Name, ast.Subscript)):
            return node
        value = copy.deepcopy(node.target)
        value.ctx = ast.Load()
        made = self._operation(node, node.op, [self.visit(value), node.value], "unamp_in_place_")
        if not isinstance(made, ast.Call):
            return node
        if isinstance(node.target, ast.Name):
            return _placed(ast.Assign([node.target], made), node)
        self.generic_visit(node.target)
        return self._item_set(node, node.target, made)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if "unamp_subscript" not in self._names or not isinstance(node.ctx, ast.Load):
            return node
        if self._is_no_tensor(node.value):
            return node
        return _call(node, "unamp_subscript", [node.value, node.slice])

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if CONVERTED in self._names and isinstance(node.ctx, ast.Load) and self._is_parameter(node):
            return node if node.attr in STATISTICS else _call(node, CONVERTED, [node])
        self.generic_visit(node)
        name = f"unamp_attribute_{node.attr}"
        if (
            name not in self._names
            or not isinstance(node.ctx, ast.Load)
            or self._is_no_tensor(node.value)
        ):
            return node
        return _call(node, name, [node.value])

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        of = node.func
        if isinstance(of, ast.Name) and of.id not in self._local and of.id not in self._known:
            if of.id == "pow" and len(node.args) == 2:
                return self._operation(node, ast.Pow(), node.args)
            if f"unamp_builtin_{of.id}" in self._names:
                node.func = _name(f"unamp_builtin_{of.id}", of)
            return node
        if (
            isinstance(of, ast.Attribute)
            and f"unamp_method_{of.attr}" in self._names
            and not self._is_no_tensor(of.value)
        ):
            made = _call(node, f"unamp_method_{of.attr}", [of.value, *node.args])
            made.keywords = node.keywords
            return made
        return node

    def _operation(
        self, node: NodeT, operator: ast.AST, values: list[ast.expr], prefix: str = "unamp_"
    ) -> NodeT | ast.Call:
        op = OPERATORS.get(type(operator))
        if (
            op is None
            or f"{prefix}{op[0]}" not in self._names
            or all(map(self._is_no_tensor, values))
        ):
            return node
        if any(isinstance(each, _PLAIN) and not _is_number(each) for each in values):
            return node
        return _call(node, f"{prefix}{op[0]}", values)

    def _is_parameter(self, node: ast.Attribute) -> bool:
        """Return whether an attribute is an eligible parameter, or a list or tuple of them."""
        found = self._value(node)
        each = found if isinstance(found, (list, tuple)) and found else (found,)
        return all(isinstance(one, Parameter) and one.dtype in NAMES for one in each)

    def _is_no_tensor(self, node: ast.expr) -> bool:
        """Return whether an expression's value is certainly no tensor."""
        if isinstance(node, ast.Attribute) and node.attr in _ABOUT:
            return True
        if isinstance(node, ast.Subscript):  # x.shape[0]
            return isinstance(node.value, ast.Attribute) and node.value.attr in _ABOUT
        if isinstance(node, _PLAIN):
            return True
        found = self._value(node)
        return found is not _UNKNOWN and not isinstance(found, (Tensor, list, tuple, dict))

    def _value(self, node: ast.expr) -> object:
        """Return the object of a name, or of an attribute of one; `_UNKNOWN` if not known yet."""
        if isinstance(node, ast.Name):
            if node.id == "self" and self._owner is not None:
                return self._owner
            return _UNKNOWN if node.id in self._local else self._known.get(node.id, _UNKNOWN)
        if isinstance(node, ast.Attribute):
            of = self._value(node.value)
            return _UNKNOWN if of is _UNKNOWN else getattr(of, node.attr, _UNKNOWN)
        return _UNKNOWN


def _name(name: str, like: ast.AST) -> ast.Name:
    return _placed(ast.Name(name, ast.Load()), like)


def _call(like: ast.AST, name: str, values: list[ast.expr]) -> ast.Call:
    return _placed(ast.Call(_name(name, like), values, []), like)


def _assigned(name: str, value: ast.expr, like: ast.AST) -> ast.Assign:
    return _placed(ast.Assign([_placed(ast.Name(name, ast.Store()), like)], value), like)


def _placed(node: NodeT, like: ast.AST) -> NodeT:
    """Return a new node with another node's position in the source, which error messages show.

    asttokens leaves more attributes on nodes than `ast` does; all are copied.
    """
    vars(node).update(
        {
            name: value
            for name, value in vars(like).items()
            if name not in (*like._fields, *node._fields)
        }
    )
    return node


def _has(node: ast.AST, kind: type[ast.AST]) -> bool:
    return any(isinstance(each, kind) for each in ast.walk(node))


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float))


def _locals(code: types.CodeType) -> set[str]:
    """Return the names of a function's variables, and of those of the functions inside it."""
    inner = [_locals(each) for each in code.co_consts if isinstance(each, types.CodeType)]
    return set(code.co_varnames).union(code.co_cellvars, *inner)


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return _UNKNOWN
