"""Whole training steps: forward in the region, backward outside, SGD."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

import unamp
from benchmarks.measure import Comparison, Contender
from benchmarks.on_torch.alternative import function_mode
from benchmarks.on_torch.networks import ALLOW, DENY, NETWORKS

__all__ = ["custom", "native", "o2"]

Region = Callable[[], AbstractContextManager[Any]]


def _torch() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def _unamp(**arguments: Any) -> Region:
    return lambda: unamp.autocast("cpu", dtype="bfloat16", **arguments)


class _Step:
    """One network in training. Every contender has a copy of its own, from the same seed."""

    def __init__(self, network: str, forward: str, region: Region) -> None:
        torch.manual_seed(0)
        self.network = NETWORKS[network]()
        self.forward = getattr(self.network, forward)
        self.region = region
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=1e-3)
        self.batch = self.network.data()

    def loss(self) -> torch.Tensor:
        with self.region():
            return self.forward(*self.batch)

    def run(self) -> None:
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()


def _comparison(title: str, network: str, contenders: Mapping[str, tuple[str, Region, float | None]], same: str) -> Comparison:
    steps = {name: _Step(network, forward, region) for name, (forward, region, _) in contenders.items()}
    baseline = next(iter(steps.values()))
    _check_equal(network, baseline, steps[same])
    return Comparison(
        f"{title}, {network}",
        tuple(Contender(name, "run()", {"run": steps[name].run}, goal=goal) for name, (_, _, goal) in contenders.items()),
    )


def _check_equal(network: str, baseline: _Step, other: _Step) -> None:
    # Two networks that do not compute the same would be no comparison.
    a, b = baseline.loss(), other.loss()
    a.backward()
    b.backward()
    pairs = [(a, b), *((p.grad, q.grad) for p, q in zip(baseline.network.parameters(), other.network.parameters(), strict=True))]
    if not all(torch.equal(p, q) for p, q in pairs):
        raise RuntimeError(f"{network}: unamp and its baseline do not compute the same; the benchmark would be meaningless")


def native() -> list[Comparison]:
    """Policies that PyTorch realises by itself."""
    return [
        _comparison(
            "train step, policy that torch realises",
            network,
            {
                "torch.autocast": ("forward", _torch, None),
                "unamp, preset native": ("forward", _unamp(preset="native"), 1.02),
                "unamp, preset torch-cpu": ("forward", _unamp(preset="torch-cpu"), 1.02),
                "float32": ("forward", nullcontext, None),
            },
            same="unamp, preset torch-cpu",
        )
        for network in NETWORKS
    ]


def custom() -> list[Comparison]:
    """The default preset with custom lists."""
    softmax_too = (*DENY, "softmax", "log_softmax", "cross_entropy")
    return [
        _comparison(
            "train step, custom lists",
            network,
            {
                "casts written by hand": ("by_hand", nullcontext, None),
                "unamp": ("forward", _unamp(allow=ALLOW, deny=DENY), 1.05),
                "TorchFunctionMode": ("forward", function_mode(ALLOW, softmax_too), None),
                "float32": ("forward", nullcontext, None),
            },
            same="unamp",
        )
        for network in NETWORKS
    ]


def o2() -> list[Comparison]:
    """Level O2."""
    return [
        _comparison(
            "train step, O2",
            network,
            {
                "casts written by hand": ("by_hand_low", nullcontext, None),
                "unamp": ("forward", _unamp(level="O2"), 1.05),
                "torch.autocast (its own lists)": ("forward", _torch, None),
            },
            same="unamp",
        )
        for network in NETWORKS
    ]
