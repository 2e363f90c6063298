"""Functions that `paddle.jit` compiles from source (AST) or bytecode (SOT), or saves and loads."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import paddle

from unamp._function_types import Function
from unamp.adapter import OpenRegion, Way
from unamp.adapter.plain_ways import Runs
from unamp_paddle.conformance.ways.opening import (
    both,
    called,
    holding,
    inside,
    made_before,
    written,
)


def ways() -> Iterator[Way]:
    """Yield the ways of `paddle.jit`."""
    for name, full_graph in (("AST", True), ("SOT", False)):
        # SOT would simulate the suite's code that makes regions. Gradients are only equal within a
        # bound: a program adds them up in its own order.
        made: dict[str, Any] = {"opens": inside if full_graph else made_before, "equal": "bound"}
        yield from both(f"to_static {name}", "compiled", _compiling(full_graph=full_graph), **made)
        yield from both(
            f"to_static {name}, a layer",
            "compiled",
            _compiling_layer(full_graph=full_graph),
            **made,
        )
        yield from both(
            f"to_static {name}, not_to_static inside",
            "compiled",
            _left_out(full_graph=full_graph),
            **made,
        )
        yield Way(
            f"to_static {name}, function decorated",
            "decorated",
            _decorated_inside(full_graph=full_graph),
            equal="bound",
        )
        yield Way(
            f"to_static {name}, decorated around",
            "decorated",
            _decorated_around(full_graph=full_graph),
            equal="bound",
        )
    yield from both("jit.save and load", "exported", _loaded, gradients=False, equal="bound")


def _compiled(function: Function, *, full_graph: bool) -> Function:
    compiled: Function = paddle.jit.to_static(function, full_graph=full_graph)
    return compiled


def _compiling(*, full_graph: bool) -> Runs:
    def run(function: Function, inputs: Sequence[Any]) -> Any:
        return called(_compiled(function, full_graph=full_graph), inputs)

    return run


def _compiling_layer(*, full_graph: bool) -> Runs:
    def run(function: Function, inputs: Sequence[Any]) -> Any:
        return called(_compiled(holding(function), full_graph=full_graph), inputs)

    return run


def _left_out(*, full_graph: bool) -> Runs:
    def run(function: Function, inputs: Sequence[Any]) -> Any:
        paddle.jit.not_to_static(function)

        calls = written(
            "def made({arguments}):\n    return function({arguments})\n",
            function,
            function=function,
        )
        return called(_compiled(calls, full_graph=full_graph), inputs)

    return run


def _decorated_inside(*, full_graph: bool) -> Any:
    def run(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
        return called(_compiled(region()(function), full_graph=full_graph), inputs)

    return run


def _decorated_around(*, full_graph: bool) -> Any:
    def run(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
        return called(region()(_compiled(function, full_graph=full_graph)), inputs)

    return run


def _loaded(function: Function, inputs: Sequence[Any]) -> Any:
    given = [
        paddle.static.InputSpec(tensor.shape, tensor.dtype, stop_gradient=tensor.stop_gradient)
        for tensor in inputs
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "saved")
        paddle.jit.save(holding(function), path, input_spec=given)
        return paddle.jit.load(path)(*inputs)
