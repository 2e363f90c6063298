"""PyTorch's network with layers, and the ways to run it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from unamp.adapter.layered_networks import LayeredNetworks, Runner, eager
from unamp_torch.devices import device_type


class _Block(torch.nn.Module):
    def __init__(self, weights: Sequence[Any]) -> None:
        super().__init__()
        self.first, self.second = (
            torch.nn.Linear(w.shape[1], w.shape[0], bias=False) for w in weights
        )
        with torch.no_grad():
            for layer, weight in zip((self.first, self.second), weights, strict=True):
                layer.weight.copy_(torch.from_numpy(weight))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.first(x), self.second(x)


class _Network(torch.nn.Module):
    def __init__(self, weights: Sequence[Any]) -> None:
        super().__init__()
        self.block = _Block(weights)

    def forward(self, x: torch.Tensor) -> Any:
        return self.block(x)


def _network(weights: Sequence[Any], device: str) -> torch.nn.Module:
    return _Network(weights).to(device_type(device))


def _compiled(network: torch.nn.Module) -> Runner:
    return eager(torch.compile(network, backend="aot_eager", fullgraph=True))


def _exported(network: torch.nn.Module) -> Runner:
    def run(region: Any, x: Any) -> Any:
        with region():
            program = torch.export.export(network, (x,))
        return program.module()(x)

    return run


def layered() -> LayeredNetworks:
    """Return the networks with layers, as conformance takes them."""
    return LayeredNetworks(_network, {"eager": eager, "compiled": _compiled, "exported": _exported})
