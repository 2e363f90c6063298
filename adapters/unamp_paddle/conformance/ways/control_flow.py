"""Branches and loops on tensors, run by Python and in programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import paddle

from unamp._function_types import Function
from unamp.adapter import Way
from unamp.adapter.plain_ways import Runs
from unamp_paddle.conformance.ways.opening import both, called, written


def _cond(function: Function, inputs: Sequence[Any]) -> Any:
    chosen = inputs[0].astype("float32").abs().sum() >= 0.0
    return paddle.static.nn.cond(chosen, lambda: function(*inputs), lambda: function(*inputs))


def _while_loop(function: Function, inputs: Sequence[Any]) -> Any:
    def body(n: Any, result: Any) -> list[Any]:
        return [n + 1, function(*inputs)]

    start = [paddle.zeros([1], "int64"), paddle.zeros_like(function(*inputs))]
    return paddle.static.nn.while_loop(lambda n, result: n < 2, body, start)[1]


def _compiled(runs: Runs) -> Runs:
    def run(function: Function, inputs: Sequence[Any]) -> Any:
        source = "def made({arguments}):\n    return runs(function, [{arguments}])\n"
        calls = written(source, function, runs=runs, function=function)
        return called(paddle.jit.to_static(calls, full_graph=True), inputs)

    return run


def ways() -> Iterator[Way]:
    """Yield the ways of control flow."""
    for name, runs in (("static.nn.cond", _cond), ("static.nn.while_loop", _while_loop)):
        yield from both(name, "control flow", runs)
        # Paddle has no gradient for a loop in a program: the loop does not keep the values for one.
        differentiable = runs is not _while_loop
        yield from both(
            f"{name}, to_static AST",
            "control flow",
            _compiled(runs),
            gradients=differentiable,
            equal="bound",
        )
