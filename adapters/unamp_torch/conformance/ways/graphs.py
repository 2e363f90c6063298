"""Functions that are compiled, traced or exported, and loaded again."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch.fx import symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx

from unamp.adapter import OpenRegion, Way
from unamp_torch.conformance.ways.opening import Function, Holding, both, inside

__all__ = ["ways"]

_NO_COMPILER = "" if shutil.which("c++") else "inductor needs a C++ compiler, and there is none"
_NO_ONNX = ", ".join(name for name in ("onnx", "onnxscript", "onnxruntime") if not find_spec(name))

#: Makes a function of a function and inputs, as a tracer does: what it returns is run on the inputs afterwards.
Makes = Callable[[Function, Sequence[Any]], Function]


def ways() -> Iterator[Way]:
    """Yield the ways of compilers, tracers and exporters."""
    for backend in ("eager", "aot_eager", "pre_dispatch_eager"):
        yield from both(f"compile {backend}", "compiled", _compiling(backend))
    yield from both("compile inductor", "compiled", _compiling("inductor"), equal="bound", dear=True, absent=_NO_COMPILER)
    yield Way("compile eager, region made outside", "compiled", _made_outside)
    yield Way("compile aot_eager, function decorated", "decorated", _decorated_inside)
    yield Way("compile aot_eager, decorated around", "decorated", _decorated_around)
    yield from both("make_fx", "traced", _made(lambda function, inputs: make_fx(function)(*inputs)))
    yield from both(
        "make_fx, pre-dispatch", "traced", _made(lambda function, inputs: make_fx(function, pre_dispatch=True)(*inputs))
    )
    yield from both("jit.trace", "traced", _made(_traced))
    yield from both("jit.trace, frozen", "traced", _made(_frozen))
    yield Way("jit.script", "traced", _scripted)
    yield Way("symbolic_trace, region around the graph", "traced", _symbolically_around)
    yield Way("symbolic_trace, region inside", "traced", _symbolically_inside)
    for strict in (False, True):
        yield from both(f"export{', strict' * strict}", "exported", _made(_exporting(strict=strict)))
    yield from both("export, loaded again", "exported", _made(_loaded))
    absent = f"not installed: {_NO_ONNX}" if _NO_ONNX else ""
    yield from both("ONNX", "exported", _onnx, equal="bound", gradients=False, absent=absent, dear=True)


def _compiling(backend: str) -> Callable[[Function, Sequence[Any]], Any]:
    def run(function: Function, inputs: Sequence[Any]) -> Any:
        torch._dynamo.reset()
        return torch.compile(function, backend=backend, fullgraph=True)(*inputs)

    return run


def _made_outside(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    """Compile a function that opens a region which the compiler has not seen made: it leaves the graph for it."""
    torch._dynamo.reset()
    opened = region()

    def body(*given: Any) -> Any:
        with opened:
            return function(*given)

    return torch.compile(body, backend="eager")(*inputs)


def _decorated_inside(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    return _compiling("aot_eager")(region()(function), inputs)


def _decorated_around(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    torch._dynamo.reset()
    return region()(torch.compile(function, backend="aot_eager", fullgraph=True))(*inputs)


def _made(make: Makes) -> Callable[[Function, Sequence[Any]], Any]:
    def run(function: Function, inputs: Sequence[Any]) -> Any:
        return make(function, inputs)(*inputs)

    return run


def _traced(function: Function, inputs: Sequence[Any]) -> Function:
    traced: Function = torch.jit.trace(function, tuple(inputs), check_trace=False)
    return traced


def _frozen(function: Function, inputs: Sequence[Any]) -> Function:
    traced = torch.jit.trace(Holding(function).eval(), tuple(inputs), check_trace=False)
    frozen: Function = torch.jit.freeze(traced)
    return frozen


def _scripted(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    scripted = torch.jit.script(function)
    with region():
        return scripted(*inputs)


def _symbolically_around(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    graph = symbolic_trace(function)
    with region():
        return graph(*inputs)


def _symbolically_inside(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    body: dict[str, Any] = {"body": inside(function, region)}
    exec(f"def named({', '.join(names)}): return body({', '.join(names)})", body)  # it takes no *args
    return symbolic_trace(body["named"])(*inputs)


def _exporting(*, strict: bool) -> Makes:
    def make(function: Function, inputs: Sequence[Any]) -> Function:
        exported: Function = torch.export.export(Holding(function), tuple(inputs), strict=strict).module()
        return exported

    return make


def _loaded(function: Function, inputs: Sequence[Any]) -> Function:
    file = io.BytesIO()
    torch.export.save(torch.export.export(Holding(function), tuple(inputs)), file)
    file.seek(0)
    loaded: Function = torch.export.load(file).module()
    return loaded


def _onnx(function: Function, inputs: Sequence[Any]) -> Any:
    program = torch.onnx.export(Holding(function), tuple(inputs), dynamo=True, verbose=False)
    assert program is not None
    return program(*inputs)[0]
