"""MindSpore's network for checks of layer rules, and the ways to run it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mindspore
from mindspore import nn

from unamp.adapter.layered_networks import LayeredNetworks, Runner, eager
from unamp.policy import Policy


class _Block(nn.Cell):  # type: ignore[misc]
    def __init__(self, weights: Sequence[Any]) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Dense(w.shape[1], w.shape[0], weight_init=mindspore.Tensor(w), has_bias=False)
            for w in weights
        )

    def construct(self, x):  # type: ignore[no-untyped-def]
        return self.first(x), self.second(x)


class _Network(nn.Cell):  # type: ignore[misc]
    def __init__(self, weights: Sequence[Any]) -> None:
        super().__init__()
        self.block = _Block(weights)

    def construct(self, x):  # type: ignore[no-untyped-def]
        return self.block(x)


def _network(weights: Sequence[Any], device: str) -> Any:
    return _Network(weights)  # MindSpore computes on the one device of its process


def _compiled(network: Any) -> Runner:
    @mindspore.jit
    def graph(x):  # type: ignore[no-untyped-def]
        return network(x)

    return eager(graph)


def _exported(network: Any) -> Runner:
    def run(region: Any, x: Any) -> Any:
        with TemporaryDirectory() as folder:
            path = str(Path(folder) / "network")
            with region():
                mindspore.export(network, x, file_name=path, file_format="MINDIR")
            return nn.GraphCell(mindspore.load(f"{path}.mindir"))(x)

    return run


def _refused(way: str, policy: Policy, narrowed: bool) -> str:
    return "no graph casts a layer's result" if narrowed and way != "eager" else ""


def layered() -> LayeredNetworks:
    """Return the network, and the ways to run it, for the conformance suite."""
    return LayeredNetworks(
        _network, {"eager": eager, "compiled": _compiled, "exported": _exported}, _refused
    )
