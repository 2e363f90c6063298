"""The places where MindSpore's code must know about regions, replaced while a region is open.

`acquire` puts the replacements in with the first open region of the process, `release` takes them out with the last. What
stands in asks first whether the calling thread is in a region, so that other threads see the original.
"""

from __future__ import annotations

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
from unamp.replacing import Code
from unamp_mindspore import compiling
from unamp_mindspore.kernels import entry
from unamp_mindspore.listing import codes, methods, primitive_call
from unamp_mindspore.replacing import Methods
from unamp_mindspore.state import Tensor, on_cpu, thread

__all__ = ["acquire", "assisted", "device", "probe", "release"]


def device() -> str:
    """Where this process computes."""
    return "cpu" if on_cpu() else "gpu"


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
    inherited = Methods(Tensor, {name: entry(operator) for name, operator in methods().items()})
    return (inherited, primitive_call, *_hooks(), *compiling.hooks())


@cache
def _changes() -> tuple[tuple[types.FunctionType, types.CodeType, types.CodeType], ...]:
    return tuple(code.change for code in codes().values())


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
