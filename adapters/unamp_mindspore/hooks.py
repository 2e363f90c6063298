"""The places where MindSpore's code must know about regions, replaced while a region is open.

`acquire` puts the replacements in with the first open region of the process, `release` takes them out with the last. What
stands in asks first whether the calling thread is in a region, so that other threads see the original.
"""

from __future__ import annotations

import dis
import functools
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import mindspore
from mindspore import nn, ops
from mindspore._c_expression import TensorPy
from mindspore.common import api
from mindspore.ops.function import nn_func
from mindspore.ops.primitive import Primitive

from unamp.errors import FrameworkNotSupported
from unamp.regions import innermost_region
from unamp.vocabulary import vocabulary
from unamp_mindspore import compiling
from unamp_mindspore.facts import facts
from unamp_mindspore.kernels import Operator, entry
from unamp_mindspore.replacing import Code, Methods
from unamp_mindspore.spellings import named, primitive, spelled
from unamp_mindspore.state import Tensor, on_cpu, thread

__all__ = ["acquire", "assisted", "covers", "device", "operators", "probe", "release"]


#: What the code of a function consists of that hands its arguments on.
_HANDING_ON = frozenset(
    ("RESUME", "LOAD_GLOBAL", "LOAD_FAST", "LOAD_CONST", "KW_NAMES", "PUSH_NULL", "PRECALL", "CALL", "RETURN_VALUE", "CACHE")
)


def device() -> str:
    """Where this process computes."""
    return "cpu" if on_cpu() else "gpu"


# --- the operations ----------------------------------------------------------------------------------------------------------


def _left_alone(op: str) -> bool:
    return vocabulary()[op].group == "cast" or op in facts().left_alone


def _indexing(args: Any, kwargs: Any) -> str:
    items = args[1] if isinstance(args[1], tuple) else (args[1],)
    if any(isinstance(item, (Tensor, list)) for item in items):
        return "index"
    return "select" if all(type(item) is int or item == slice(None) for item in items) else "slice"


def _of_layer(kinds: dict[type, str]) -> Callable[[Any, Any], str]:
    """For layers that share a `construct`: the operation of the layer's own class."""

    def which(args: Any, kwargs: Any) -> str:
        return next((kinds[kind] for kind in type(args[0]).__mro__ if kind in kinds), next(iter(kinds.values())))

    return which


@cache
def _layers() -> dict[Any, dict[type, str]]:
    """For every `construct`, the layers that run it and their operations."""
    found: dict[Any, dict[type, str]] = {}
    for path, op in spelled().items():
        kind = named(path) if "." in path else None
        if isinstance(kind, type) and issubclass(kind, nn.Cell):
            found.setdefault(kind.construct, {})[kind] = op
    return found


def _hands_on(function: Any, op: str) -> bool:
    """Whether a function of Python code does nothing but call a primitive that is the same operation."""
    code = getattr(function, "__code__", None)
    if code is None or len(code.co_names) != 1 or code.co_freevars:
        return False
    kind = type(function.__globals__.get(code.co_names[0]))
    own = issubclass(kind, Primitive) and "__call__" in vars(kind) and spelled().get(kind.__name__) == op
    return own and all(step.opname in _HANDING_ON for step in dis.get_instructions(code))


@cache
def _codes() -> dict[Operator, Code]:
    """Functions, primitives and layers of Python code."""
    made: dict[Operator, Code] = {}
    taken: set[Any] = set()

    def add(function: Any, op: str, name: str, **kinds: Any) -> None:
        if not isinstance(function, types.FunctionType) or function in taken:
            return
        taken.add(function)
        operator = Operator(op, name, function, **kinds)

        def instead(original: Any) -> Any:
            operator.call = original
            return entry(operator)

        made[operator] = Code(function, instead)

    for construct, kinds in _layers().items():
        op, which = next(iter(kinds.values())), None if len(set(kinds.values())) == 1 else _of_layer(kinds)
        add(construct, op, construct.__qualname__, layer=True, bound=True, which=which)
    for path, op in spelled().items():
        if _left_alone(op):
            continue
        value = named(path) if "." in path else primitive(path)
        if isinstance(value, Primitive):  # some functions of `ops` are one
            value = type(value)
        if isinstance(value, type) and issubclass(value, Primitive):
            add(vars(value).get("__call__"), op, value.__name__, bound=True)
        elif not isinstance(value, type) and not _hands_on(value, op):
            add(value, op, path)
    add(nn_func.linear, "linear", "ops.function.nn_func.linear")  # attention's own, with its bias
    # A layer may cast its parameters before it uses them: they must be known until then.
    add(Tensor.astype, "cast", "Tensor.astype")
    for name, op in _tensor_methods().items():
        add(vars(Tensor).get(name), op, f"Tensor.{name}")
    return made


@cache
def _tensor_methods() -> dict[str, str]:
    """The methods of a Tensor that are an operation, and the operation."""
    found = dict(facts().methods)
    for name in dir(Tensor):
        for path in (f"mint.{name}", f"ops.{name}"):
            if path in spelled():
                found.setdefault(name, spelled()[path])
    return found


@cache
def _methods() -> dict[str, Operator]:
    """The methods of a Tensor that are C++."""
    inherited = vars(TensorPy)
    found = {}
    for name, op in _tensor_methods().items():
        if name in inherited and name not in vars(Tensor) and not _left_alone(op):
            found[name] = Operator(op, f"Tensor.{name}", inherited[name])
    for name, twin in facts().in_place.items():
        if name in inherited and name not in vars(Tensor):
            op = _tensor_methods()[twin]
            found[name] = Operator(op, f"Tensor.{name}", inherited[name], inplace=True, twin=getattr(Tensor, twin))
    found["__getitem__"] = Operator("index", "Tensor.__getitem__", inherited["__getitem__"], which=_indexing)
    return found


@cache
def _by_name() -> dict[str, Operator]:
    """Primitives that have no `__call__` of their own: they run through `Primitive.__call__`."""
    found = {}
    for path, op in spelled().items():
        kind = primitive(path.rpartition(".")[2]) or type(named(path))
        if issubclass(kind, Primitive) and kind is not Primitive and "__call__" not in vars(kind) and not _left_alone(op):
            found[kind.__name__] = Operator(op, kind.__name__, _primitive_call.original, bound=True)
    return found


def _through_name(original: Callable[..., Any]) -> Callable[..., Any]:
    entries: dict[str, Callable[..., Any]] = {}

    def call(self: Any, *args: Any) -> Any:
        if thread.plan is None:
            return original(self, *args)
        if not entries:
            entries.update({name: entry(operator) for name, operator in _by_name().items()})
        return entries.get(self.name, original)(self, *args)

    return call


_primitive_call = Code(Primitive.__call__, _through_name)


@cache
def operators() -> tuple[Operator, ...]:
    """All operations."""
    return (*_codes(), *_methods().values(), *_by_name().values())


@cache
def covers(op: str) -> bool:
    """Whether anything that a rule could reach is an operation."""
    return _left_alone(op) or any(operator.op == op for operator in operators())


# --- functions of MindSpore that must know about regions -------------------------------------------------------------------


@contextmanager
def assisted() -> Iterator[None]:
    """No policy is in force in this thread, but it can compute with low tensors where the device cannot."""
    from unamp_mindspore.plans import idle

    acquire()
    plan, weights = thread.plan, thread.weights
    thread.plan, thread.weights = idle(watching=False), None
    try:
        yield
    finally:
        thread.plan, thread.weights = plan, weights
        release()


def _backward(original: Callable[..., Any]) -> Callable[..., Any]:
    # Backward runs in the dtype of its forward; and what was kept belongs to a graph that is now used up.
    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        if thread.plan is None:
            return original(*args, **kwargs)
        try:
            with assisted():
                return original(*args, **kwargs)
        finally:
            if thread.weights:
                thread.weights.clear()

    return run


def _recording(original: Callable[..., Any]) -> Callable[..., Any]:
    # A cast belongs to the graph in which it was recorded.
    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        if thread.weights:
            thread.weights.clear()
        return original(*args, **kwargs)

    return run


def _recompute(original: Callable[..., Any]) -> Callable[..., Any]:
    # Recomputation remembers MindSpore's own strategy for the second forward, and not ours.
    def run(block: Any, *args: Any, **kwargs: Any) -> Any:
        region = innermost_region()
        if thread.plan is None or region is None:
            return original(block, *args, **kwargs)
        return original(_in_region(block, region), *args, **kwargs)

    return run


def _in_region(block: Any, region: Any) -> Any:
    if isinstance(block, nn.Cell):
        return _Again(block, region)
    if isinstance(block, types.MethodType):
        return types.MethodType(_in_region(block.__func__, region), block.__self__)

    @functools.wraps(block)
    def run(*args: Any, **kwargs: Any) -> Any:
        with region:
            return block(*args, **kwargs)

    return run


class _Again(nn.Cell):
    """A cell that opens a region for the cell in it, each time that it is called."""

    def __init__(self, block: nn.Cell, region: Any) -> None:
        super().__init__(auto_prefix=False)
        self.block = block
        self._region = region

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        with self._region:
            return self.block(*args, **kwargs)


#: Functions of Python code, and what makes the replacement.
_HOOKS = (
    (api._PyNativeExecutor, "grad", _backward),
    (api._PyNativeExecutor, "new_graph", _recording),
    (sys.modules["mindspore.common.recompute"], "recompute", _recompute),
)


@cache
def _hooks() -> tuple[Code, ...]:
    return tuple(Code(getattr(home, name), replacement) for home, name, replacement in _HOOKS)


# --- putting in and taking out ---------------------------------------------------------------------------------------------

_lock = threading.RLock()
_open = 0


@cache
def _everything() -> tuple[Any, ...]:
    methods = Methods(Tensor, {name: entry(operator) for name, operator in _methods().items()})
    return (methods, _primitive_call, *_hooks(), *compiling.hooks())


@cache
def _changes() -> tuple[tuple[types.FunctionType, types.CodeType, types.CodeType], ...]:
    return tuple(code.change for code in _codes().values())


def acquire() -> None:
    """A region opens in some thread."""
    global _open
    with _lock:
        _open += 1
        if _open == 1:
            for each in _everything():
                each.put_in()
            for function, _, instead in _changes():
                function.__code__ = instead


def release() -> None:
    """A region closes."""
    global _open
    with _lock:
        _open -= 1
        if _open == 0:
            _take_out()


def _take_out() -> None:
    for each in _everything():
        each.take_out()
    for function, own, instead in _changes():
        if function.__code__ is instead:
            function.__code__ = own


def probe() -> None:
    """Check that everything that is replaced is where it is expected.

    Raises:
        FrameworkNotSupported: naming the version of MindSpore and what is missing.
    """
    needed = [(home, name) for home, name, _ in _HOOKS]
    needed += [
        (TensorPy, name) for name in ("__add__", "__getitem__", "copy_", "matmul", "is_contiguous", "_dtype", "_version")
    ]
    needed += [(Tensor, "__matmul__"), (nn_func, "linear"), (Primitive, "__call__"), (ops, "Cast"), (nn.Conv2d, "construct")]
    needed += [(api._pynative_executor._executor, "requires_grad"), *compiling.needed()]
    for home, name in needed:
        if getattr(home, name, None) is None:
            where = getattr(home, "__name__", type(home).__name__)
            raise FrameworkNotSupported(f"mindspore {mindspore.__version__} has no {where}.{name}, which unamp needs")


def _forked() -> None:
    # A worker of a data pipeline is a copy of a process that may be in a region; it starts without one.
    global _lock, _open
    _lock, _open = threading.RLock(), 0
    thread.plan, thread.weights, thread.sink = None, None, None
    _take_out()


if hasattr(os, "register_at_fork"):
    # Held across the fork, so that no other thread is in the middle of a change that the child would wait for.
    os.register_at_fork(before=lambda: _lock.acquire(), after_in_parent=lambda: _lock.release(), after_in_child=_forked)
