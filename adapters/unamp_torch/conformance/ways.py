"""The ways in which PyTorch runs a function. `unamp.adapter.ways` explains what is in one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from unamp.adapter import OpenRegion, Way

__all__ = ["ways"]

Function = Callable[..., Any]


def _inside(function: Function, region: OpenRegion) -> Function:
    """Return a function with the region in it."""

    def body(*inputs: Any) -> Any:
        with region():
            return function(*inputs)

    return body


def _compiled(backend: str, *, inside: bool) -> Way:
    def run(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> Any:
        torch._dynamo.reset()
        if inside:
            return torch.compile(_inside(function, region), backend=backend, fullgraph=True)(*inputs)
        with region():
            return torch.compile(function, backend=backend, fullgraph=True)(*inputs)

    return Way(f"compile {backend}, region {'inside' if inside else 'around'}", "compiled", run)


def ways() -> tuple[Way, ...]:
    """Return the ways of this version of PyTorch."""
    return (_compiled("eager", inside=True), _compiled("eager", inside=False), _compiled("aot_eager", inside=False))
