"""Functions that are compiled, traced or exported, and loaded again."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from warnings import catch_warnings, simplefilter

import torch
from torch import _dynamo as dynamo
from torch.fx import symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx

from unamp._function_types import Function
from unamp.adapter import OpenRegion, Way
from unamp.adapter.plain_ways import both, inside
from unamp_torch.conformance.ways.opening import Holding

_NO_COMPILER = "" if shutil.which("c++") else "inductor needs a C++ compiler, and there is none"
_NO_ONNX = ", ".join(name for name in ("onnx", "onnxscript") if not find_spec(name))

#: Makes a function from a function and its inputs, as a tracer does; the made function is run on
#: the inputs afterwards.
Makes = Callable[[Function, Sequence[Any]], Function]


def ways() -> Iterator[Way]:
    """Yield the ways of compilers, tracers and exporters."""
    for backend in ("eager", "aot_eager", "pre_dispatch_eager"):
        yield from both(f"compile {backend}", "compiled", _compiling(backend))
    yield from both(
        "compile inductor",
        "compiled",
        _compiling("inductor"),
        equal="bound",
        dear=True,
        absent=_NO_COMPILER,
    )
    yield Way("compile eager, region made outside", "compiled", _made_outside)
    yield Way("compile aot_eager, function decorated", "decorated", _decorated_inside)
    yield Way("compile aot_eager, decorated around", "decorated", _decorated_around)
    for above in (False, True):
        yield from _tracing(
            f"make_fx{', pre-dispatch' * above}", "traced", partial(_recorded, above=above)
        )
    # TorchScript differentiates by formulas of its own.
    yield from _tracing("jit.trace", "traced", _traced, equal="bound")
    yield from _tracing("jit.trace, frozen", "traced", _frozen, equal="bound")
    # Where a script runs in a region, these formulas know of no casts, and the backward pass
    # raises.
    variable = {
        "lstm": "TorchScript compiles no function that takes a variable number of arguments"
    }
    yield Way(
        "jit.script, its own autocast off", "traced", _scripted, upstream=variable, gradients=False
    )
    yield Way("symbolic_trace, region around the graph", "traced", _symbolically_around)
    unrecorded = "symbolic tracing records calls, and the opening of a region is none"
    yield Way("symbolic_trace, region inside", "traced", _symbolically_inside, refused=unrecorded)
    for strict in (False, True):
        yield from _tracing(
            f"export{', strict' * strict}", "exported", partial(_exported, strict=strict)
        )
    yield from _tracing("export, loaded again", "exported", _loaded)
    absent = f"not installed: {_NO_ONNX}" if _NO_ONNX else ""
    yield from both(
        "ONNX", "exported", _onnx, equal="bound", gradients=False, absent=absent, dear=True
    )


def only_compile() -> None:
    """Leave out what PyTorch does with each compiled function besides compiling, in this process.

    It collects garbage, and empties the processor's caches to measure for its log how long guards
    take: together as long as many of these functions take to compile.
    """
    if hasattr(dynamo.config, "run_gc_after_compile"):
        dynamo.config.run_gc_after_compile = False
    if hasattr(dynamo.guards, "profile_guard_manager"):
        dynamo.guards.profile_guard_manager = lambda *_: 0.0


def _compiling(backend: str) -> Callable[[Function, Sequence[Any]], Any]:
    def run(function: Function, inputs: Sequence[Any]) -> Any:
        torch._dynamo.reset()
        with redirect_stdout(io.StringIO()):  # one of the backends prints its graphs
            return torch.compile(function, backend=backend, fullgraph=True)(*inputs)

    return run


def _made_outside(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    """Compile a function with a region made outside of it, where the graph breaks."""
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


def _tracing(name: str, kind: str, make: Makes, **promised: Any) -> Iterator[Way]:
    """Yield two ways: the region is inside the traced function, or around the tracing.

    The made function is run outside of the region.
    """

    def run_inside(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
        return make(inside(function, region), inputs)(*inputs)

    def run_around(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
        with region():
            made = make(function, inputs)
        return made(*inputs)

    yield Way(f"{name}, region inside", kind, run_inside, **promised)
    yield Way(f"{name}, region around", kind, run_around, **promised)


def _recorded(function: Function, inputs: Sequence[Any], *, above: bool) -> Function:
    return make_fx(function, pre_dispatch=above)(*inputs)


def _traced(function: Function, inputs: Sequence[Any]) -> Function:
    traced: Function = torch.jit.trace(function, tuple(inputs), check_trace=False)
    return traced


def _frozen(function: Function, inputs: Sequence[Any]) -> Function:
    traced = torch.jit.trace(Holding(function).eval(), tuple(inputs), check_trace=False)
    frozen: Function = torch.jit.freeze(traced)
    return frozen


def _scripted(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    """Script a function.

    TorchScript's own autocast, with lists of its own, would rewrite it in a region: it is off.
    """
    before = torch._C._jit_set_autocast_mode(False)
    try:
        scripted = torch.jit.script(function)
        with region():
            return scripted(*inputs)
    finally:
        torch._C._jit_set_autocast_mode(before)


def _symbolically_around(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    graph = symbolic_trace(function)
    with region():
        return graph(*inputs)


def _symbolically_inside(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    body: dict[str, Any] = {"body": inside(function, region)}
    # symbolic_trace takes no *args
    exec(f"def named({', '.join(names)}): return body({', '.join(names)})", body)
    return symbolic_trace(body["named"])(*inputs)


def _exported(function: Function, inputs: Sequence[Any], *, strict: bool) -> Function:
    exported: Function = torch.export.export(
        Holding(function), tuple(inputs), strict=strict
    ).module()
    return exported


def _loaded(function: Function, inputs: Sequence[Any]) -> Function:
    file = io.BytesIO()
    torch.export.save(torch.export.export(Holding(function), tuple(inputs)), file)
    file.seek(0)
    loaded: Function = torch.export.load(file).module()
    return loaded


def _onnx(function: Function, inputs: Sequence[Any]) -> Any:
    # ONNX's own evaluator: ONNX Runtime drops casts to float16 and back on the CPU, and has few
    # kernels for bfloat16.
    evaluator = import_module("onnx.reference").ReferenceEvaluator
    with catch_warnings():
        simplefilter("ignore")  # that torchvision is not installed
        program = torch.onnx.export(Holding(function), tuple(inputs), dynamo=True, verbose=False)
    assert program is not None
    model = program.model_proto
    names = [given.name for given in model.graph.input]
    (result,) = evaluator(model).run(None, dict(zip(names, map(_array, inputs), strict=True)))
    return _tensor(result).to(inputs[0].device)


# PyTorch neither gives nor takes arrays of ml_dtypes' bfloat16.


def _array(tensor: torch.Tensor) -> Any:
    here = tensor.detach().cpu()
    return (
        here.view(torch.int16).numpy().view("bfloat16")
        if here.dtype is torch.bfloat16
        else here.numpy()
    )


def _tensor(array: Any) -> torch.Tensor:
    if array.dtype == "bfloat16":
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)
