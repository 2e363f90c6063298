"""Functions that `paddle.jit` compiles from source (AST) or bytecode (SOT), or saves and loads."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import paddle

from unamp._function_types import Function
from unamp.adapter import OpenRegion, Way
from unamp_paddle.conformance.ways.opening import (
    both,
    called,
    holding,
    inside,
    made_before,
    written,
)

#: Compiles a function or a layer.
Compiles = Callable[[Any], Function]


def ways() -> Iterator[Way]:
    """Yield the ways of `paddle.jit`."""
    for name, full_graph in (("AST", True), ("SOT", False)):
        # SOT would simulate the suite's code that makes regions. Gradients are only equal within a
        # bound: a program adds them up in its own order.
        made: dict[str, Any] = {"opens": inside if full_graph else made_before, "equal": "bound"}
        compiles = partial(paddle.jit.to_static, full_graph=full_graph)
        for kind, runs in (
            ("", _compiled),
            (", a layer", _compiled_layer),
            (", not_to_static inside", _left_out),
        ):
            yield from both(f"to_static {name}{kind}", "compiled", partial(runs, compiles), **made)
        for kind, run in (
            ("function decorated", _decorated_inside),
            ("decorated around", _decorated_around),
        ):
            yield Way(
                f"to_static {name}, {kind}", "decorated", partial(run, compiles), equal="bound"
            )
    yield from both("jit.save and load", "exported", _loaded, gradients=False, equal="bound")


def _compiled(compiles: Compiles, function: Function, inputs: Sequence[Any]) -> Any:
    return called(compiles(function), inputs)


def _compiled_layer(compiles: Compiles, function: Function, inputs: Sequence[Any]) -> Any:
    return called(compiles(holding(function)), inputs)


def _left_out(compiles: Compiles, function: Function, inputs: Sequence[Any]) -> Any:
    paddle.jit.not_to_static(function)
    source = "def made({arguments}):\n    return function({arguments})\n"
    return called(compiles(written(source, function, function=function)), inputs)


def _decorated_inside(
    compiles: Compiles, function: Function, region: OpenRegion, inputs: Sequence[Any]
) -> Any:
    return called(compiles(region()(function)), inputs)


def _decorated_around(
    compiles: Compiles, function: Function, region: OpenRegion, inputs: Sequence[Any]
) -> Any:
    return called(region()(compiles(function)), inputs)


def _loaded(function: Function, inputs: Sequence[Any]) -> Any:
    given = [
        paddle.static.InputSpec(tensor.shape, tensor.dtype, stop_gradient=tensor.stop_gradient)
        for tensor in inputs
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "saved")
        paddle.jit.save(holding(function), path, input_spec=given)
        return paddle.jit.load(path)(*inputs)
