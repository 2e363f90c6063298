"""The operations of MindSpore that the vocabulary names: functions, methods, primitives, layers."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from functools import cache
from typing import Any

from mindspore import nn
from mindspore._c_expression import TensorPy
from mindspore.ops.function import nn_func
from mindspore.ops.primitive import Primitive

from unamp._function_types import Args, Function, Keywords
from unamp.adapter.replacing import CodePatch
from unamp.vocabulary import vocabulary
from unamp_mindspore.calls import entry
from unamp_mindspore.facts import facts
from unamp_mindspore.operators import Operator
from unamp_mindspore.spellings import named, primitive, spelled
from unamp_mindspore.state import Tensor, thread

#: Attention's own product with its bias, which has no public name.
_ATTENTIONS_LINEAR: types.FunctionType = nn_func.linear


def _left_alone(op: str) -> bool:
    return vocabulary()[op].group == "cast" or op in facts().left_alone


def _indexing(args: Args, kwargs: Keywords) -> str:
    items = args[1] if isinstance(args[1], tuple) else (args[1],)
    if any(isinstance(item, (Tensor, list)) for item in items):
        return "index"
    return "select" if all(type(item) is int or item == slice(None) for item in items) else "slice"


def _of_layer(kinds: dict[type, str]) -> Callable[[Args, Keywords], str]:
    """Return the function that finds a layer's operation by its class, for a shared `construct`."""

    def which(args: Args, kwargs: Keywords) -> str:
        return next(
            (kinds[kind] for kind in type(args[0]).__mro__ if kind in kinds),
            next(iter(kinds.values())),
        )

    return which


@cache
def _layers() -> dict[Function, dict[type, str]]:
    """Return, for every `construct`, the layers that run it and their operations."""
    found: dict[Function, dict[type, str]] = {}
    for path, op in spelled().items():
        kind = named(path) if "." in path else None
        if isinstance(kind, type) and issubclass(kind, nn.Cell):
            cell: type[nn.Cell] = kind
            found.setdefault(cell.construct, {})[kind] = op
    return found


def layer_operation(cell: nn.Cell) -> str | None:
    """Return the operation of a cell that is one; None for any other cell."""
    kinds = None if "construct" in vars(cell) else _layers().get(type(cell).construct)
    return None if kinds is None else _of_layer(kinds)((cell,), {})


@cache
def codes() -> dict[Operator, CodePatch]:
    """Return the patches of functions, primitives and layers of Python code, by the operation."""
    made: dict[Operator, CodePatch] = {}
    taken: set[types.FunctionType] = set()

    def add(function: object, op: str, name: str, **kinds: Any) -> None:
        if not isinstance(function, types.FunctionType) or function in taken:
            return
        taken.add(function)
        operator = Operator(op, name, function, **kinds)

        def instead(original: Function) -> Function:
            operator.call = original
            return entry(operator)

        made[operator] = CodePatch(function, instead)

    for construct, kinds in _layers().items():
        op, *others = dict.fromkeys(kinds.values())
        add(
            construct, op, construct.__qualname__,
            layer=True, bound=True, ops=others, which=_of_layer(kinds) if others else None,
        )  # fmt: skip
    for path, op in spelled().items():
        if _left_alone(op):
            continue
        value = named(path) if "." in path else primitive(path)
        if isinstance(value, Primitive):  # some functions of `ops` are primitives
            value = type(value)
        if isinstance(value, type) and issubclass(value, Primitive):
            if not _runs_by_name(value):
                add(vars(value).get("__call__"), op, value.__name__, bound=True)
        elif not isinstance(value, type):
            add(value, op, path)
    add(_ATTENTIONS_LINEAR, "linear", "ops.function.nn_func.linear")
    # A layer may cast its parameters by `astype`: inside it, they are converted first, while they
    # can be recognised.
    add(Tensor.astype, "cast", "Tensor.astype")
    for name, op in tensor_methods().items():
        add(vars(Tensor).get(name), op, f"Tensor.{name}")
    return made


@cache
def changing_functions() -> frozenset[types.FunctionType]:
    """Return the Python functions that change their first tensor."""
    return frozenset(named(path) for path in facts().changing if "." in path)


@cache
def functions() -> dict[types.FunctionType, str]:
    """Return the Python functions that the vocabulary names, and their operations."""
    found: dict[types.FunctionType, str] = {_ATTENTIONS_LINEAR: "linear"}
    for path, op in spelled().items():
        value = named(path) if "." in path else None
        if isinstance(value, types.FunctionType) and not _left_alone(op):
            # A graph is compiled from what is inside MindSpore's decorators, too.
            found.setdefault(inspect.unwrap(value), op)
    return found


def _runs_by_name(kind: type) -> bool:
    """Return whether a primitive runs through `Primitive.__call__`."""
    return "__call__" not in vars(kind)


@cache
def tensor_methods() -> dict[str, str]:
    """Return the names of Tensor's methods that are an operation, and the operations."""
    found = dict(facts().methods)
    for name in dir(Tensor):
        for path in (f"mint.{name}", f"ops.{name}"):
            if path in spelled():
                found.setdefault(name, spelled()[path])
    return found


@cache
def methods() -> dict[str, Operator]:
    """Return the operations of Tensor's methods in C++, by the methods' names."""
    inherited = vars(TensorPy)
    found = {}

    def add(name: str, op: str, **kinds: Any) -> None:
        if name in inherited and name not in vars(Tensor) and not _left_alone(op):
            found[name] = Operator(op, f"Tensor.{name}", inherited[name], **kinds)

    for name, op in tensor_methods().items():
        add(name, op)
    for name, other in facts().in_place.items():
        add(name, tensor_methods()[other], in_place=True, out_of_place=getattr(Tensor, other))
    add("__getitem__", "index", ops=("select", "slice"), which=_indexing)
    return found


@cache
def _by_name() -> dict[str, Operator]:
    """Return the operations of primitives that run through `Primitive.__call__`, by name."""
    found = {}
    for path, op in spelled().items():
        kind = primitive(path.rpartition(".")[2]) or type(named(path))
        if (
            issubclass(kind, Primitive)
            and kind is not Primitive
            and _runs_by_name(kind)
            and not _left_alone(op)
        ):
            found[kind.__name__] = Operator(op, kind.__name__, primitive_call.original, bound=True)
    return found


def _through_name(original: Function) -> Function:
    entries: dict[str, Function] = {}

    def call(self: Primitive, *args: Any) -> Any:
        if thread.plan is None:
            return original(self, *args)
        if not entries:
            entries.update({name: entry(operator) for name, operator in _by_name().items()})
        own = entries.get(self.name)
        return original(self, *args) if own is None else own(self, *args)

    return call


primitive_call = CodePatch(Primitive.__call__, _through_name)


@cache
def operators() -> tuple[Operator, ...]:
    """Return all operations."""
    return (*codes(), *methods().values(), *_by_name().values())


@cache
def _reached() -> frozenset[str]:
    layers = {op for kinds in _layers().values() for op in kinds.values()}
    return frozenset(operator.op for operator in operators()) | layers


def covers(op: str) -> bool:
    """Return whether MindSpore has an operation, and a rule reaches it or need not."""
    return op in _reached() or (_left_alone(op) and "mindspore" in vocabulary()[op].spellings)
