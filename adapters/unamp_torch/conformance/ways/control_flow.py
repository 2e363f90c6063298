"""Functions that an operator takes and calls: branches, loops, scans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops import associative_scan, scan
from torch._higher_order_ops.map import map as map_over

from unamp._function_types import Function
from unamp.adapter import Way
from unamp.adapter.plain_ways import Runs, both
from unamp_torch.conformance.ways.opening import Holding


def _afresh(runs: Runs, function: Function, inputs: Sequence[Any]) -> Any:
    """Run with nothing compiled before.

    PyTorch compiles these operators, and a second time for other shapes as dynamic.
    """
    torch._dynamo.reset()
    return runs(function, inputs)


def _like_result(function: Function, inputs: Sequence[Any]) -> Tensor:
    """Return zeros like the result: a loop must start with a tensor like those that it carries."""
    with torch.no_grad():
        return torch.zeros_like(function(*inputs))


def _cond(function: Function, inputs: Sequence[Any]) -> Any:
    chosen = torch.tensor(True, device=inputs[0].device)
    return torch.cond(
        chosen, lambda *given: function(*given), lambda *given: function(*given), tuple(inputs)
    )


def _while_loop(function: Function, inputs: Sequence[Any]) -> Any:
    def body(n: Tensor, result: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        return n + 1, function(*given), *(tensor.clone() for tensor in given)

    carried = torch.tensor(0, device=inputs[0].device), _like_result(function, inputs), *inputs
    return torch.while_loop(lambda n, *_: n < 2, body, carried)[1]


def _scan(function: Function, inputs: Sequence[Any]) -> Any:
    start, xs = torch.zeros(1, device=inputs[0].device), torch.ones(2, 1, device=inputs[0].device)
    return scan(lambda carry, x: (carry.clone(), function(*inputs)), start, xs)[1][0]


def _map(function: Function, inputs: Sequence[Any]) -> Any:
    return map_over(
        lambda x, *given: function(*given), torch.ones(2, 1, device=inputs[0].device), *inputs
    )[0]


def _associative_scan(function: Function, inputs: Sequence[Any]) -> Any:
    result = _like_result(function, inputs)
    stacked = torch.stack([result, result])
    return associative_scan(lambda a, b: function(*inputs), stacked, 0, combine_mode="generic")[1]


def _exported_cond(function: Function, inputs: Sequence[Any]) -> Any:
    branches = Holding(partial(_cond_of, function))
    exported = torch.export.export(branches, tuple(inputs)).module()
    torch._dynamo.reset()
    return exported(*inputs)


def _cond_of(function: Function, *inputs: Any) -> Any:
    chosen = inputs[0].float().sum().isfinite()
    return torch.cond(
        chosen, lambda *given: function(*given), lambda *given: function(*given), tuple(inputs)
    )


def _compiled_cond(function: Function, inputs: Sequence[Any]) -> Any:
    return torch.compile(partial(_cond_of, function), backend="aot_eager", fullgraph=True)(*inputs)


def ways() -> Iterator[Way]:
    """Yield the ways of control flow."""
    # The backward pass of a loop decides by itself what to keep and what to compute again: its
    # results differ by one rounding.
    mutating = {
        "residual": "it refuses functions that change an input in place, "
        "as batch norm does its statistics"
    }
    dynamic = (
        "where the branches of an export run, they are compiled for shapes that convolutions refuse"
    )
    convolved = {"conv": dynamic, "conv2d": dynamic, "unet": dynamic}
    recurrent = {"lstm": "it has no gradient of an LSTM in oneDNN"}
    found: dict[str, tuple[Runs, dict[str, Any]]] = {
        "torch.cond": (_cond, {"upstream": mutating | recurrent}),
        "while_loop": (_while_loop, {"equal": "bound"}),
        "scan": (_scan, {"equal": "bound", "upstream": mutating | recurrent}),
        "map": (_map, {"upstream": mutating | recurrent}),
        "associative_scan": (_associative_scan, {}),
        "cond, exported": (_exported_cond, {"upstream": convolved | recurrent}),
        "cond, compiled aot_eager": (_compiled_cond, {"upstream": mutating}),
    }
    for name, (runs, promised) in found.items():
        yield from both(name, "control flow", partial(_afresh, runs), dear=True, **promised)
