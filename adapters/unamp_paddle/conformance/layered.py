"""Paddle's network for checks of layer rules, and the ways to run it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import paddle

from unamp.adapter.layered_networks import LayeredNetworks, Runner, eager
from unamp_paddle.conformance.ways.opening import called


class _Block(paddle.nn.Layer):  # type: ignore[misc] # Paddle comes without types
    def __init__(self, weights: Sequence[Any]) -> None:
        super().__init__()
        self.first, self.second = (
            paddle.nn.Linear(w.shape[1], w.shape[0], bias_attr=False) for w in weights
        )
        for layer, weight in zip((self.first, self.second), weights, strict=True):
            layer.weight.set_value(weight.T)

    def forward(self, x: Any) -> Any:
        return self.first(x), self.second(x)


class _Network(paddle.nn.Layer):  # type: ignore[misc]
    def __init__(self, weights: Sequence[Any]) -> None:
        super().__init__()
        self.block = _Block(weights)

    def forward(self, x: Any) -> Any:
        return self.block(x)


def _network(weights: Sequence[Any], device: str) -> Any:
    return _Network(weights).to(device)


def _compiled(network: Any) -> Runner:
    def program(x: Any) -> Any:
        return network(x)

    compiled = paddle.jit.to_static(program, full_graph=True)
    return eager(lambda x: called(compiled, [x]))


def _exported(network: Any) -> Runner:
    def run(region: Any, x: Any) -> Any:
        with TemporaryDirectory() as folder:
            path = str(Path(folder) / "network")
            with region():
                made = paddle.jit.to_static(network, full_graph=True)
                paddle.jit.save(made, path, [paddle.static.InputSpec(list(x.shape), "float32")])
            network.forward.rollback()
            vars(network).pop("forward", None)
            return paddle.jit.load(path)(x)

    return run


def layered() -> LayeredNetworks:
    """Return the network, and the ways to run it, for the conformance suite."""
    return LayeredNetworks(_network, {"eager": eager, "compiled": _compiled, "exported": _exported})
