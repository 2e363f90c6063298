"""The time of whole training steps: forward in the region, backward outside, SGD."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

import unamp
from benchmarks.measure import Comparison, Contender
from benchmarks.on_torch.alternative import function_mode
from benchmarks.on_torch.networks import ALLOW, DENY, DEVICE, NETWORKS

__all__ = ["custom", "native", "o2"]

Region = Callable[[], AbstractContextManager[Any]]

#: The preset with the lists of torch.autocast.
_LISTS = f"torch-{DEVICE}"


def _torch() -> AbstractContextManager[Any]:
    return torch.autocast(DEVICE, dtype=torch.bfloat16)


def _unamp(**arguments: Any) -> Region:
    return lambda: unamp.autocast(DEVICE, dtype="bfloat16", **arguments)


class _Training:
    """One network in training, which all contenders share.

    A copy for each would be elsewhere in memory, which changes its speed.
    """

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        self.name = name
        self.network = NETWORKS[name]().to(DEVICE)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=1e-4)
        self.batch = [each.to(DEVICE) for each in self.network.data()]

    def loss(self, forward: str, region: Region) -> torch.Tensor:
        self.optimizer.zero_grad()
        with region():
            loss = getattr(self.network, forward)(*self.batch)
        loss.backward()
        return loss

    def contender(
        self, name: str, forward: str, region: Region, goal: float | None = None
    ) -> Contender:
        source = "training.loss(forward, region); training.optimizer.step()"
        return Contender(
            name, source, {"training": self, "forward": forward, "region": region}, goal=goal
        )

    def check_equal(self, one: tuple[str, Region], other: tuple[str, Region]) -> None:
        """Check that two forwards compute the same; else the comparison would be meaningless."""
        results = [
            [self.loss(*each), *(p.grad for p in self.network.parameters())]
            for each in (one, other)
        ]
        if not all(torch.equal(a, b) for a, b in zip(*results, strict=True)):
            raise RuntimeError(
                f"{self.name}: unamp and its baseline do not compute the same; "
                "the benchmark would be meaningless"
            )


def native() -> list[Comparison]:
    """Compare policies that PyTorch's own autocast carries out."""
    found = []
    for training in map(_Training, NETWORKS):
        listed = _unamp(preset=_LISTS)
        training.check_equal(("forward", _torch), ("forward", listed))
        contenders = (
            training.contender("torch.autocast", "forward", _torch),
            training.contender("torch.autocast again: the noise", "forward", _torch),
            training.contender("unamp, preset native", "forward", _unamp(preset="native"), 1.02),
            training.contender(f"unamp, preset {_LISTS}", "forward", listed, 1.02),
            training.contender("float32", "forward", nullcontext),
        )
        found.append(
            Comparison(f"train step, policy that torch realises, {training.name}", contenders)
        )
    return found


def custom() -> list[Comparison]:
    """Compare the default preset with custom lists."""
    found = []
    for training in map(_Training, NETWORKS):
        lists = _unamp(allow=ALLOW, deny=DENY)
        training.check_equal(("by_hand", nullcontext), ("forward", lists))
        contenders = (
            training.contender("casts written by hand", "by_hand", nullcontext),
            training.contender("unamp", "forward", lists, 1.05),
            training.contender(
                "TorchFunctionMode",
                "forward",
                function_mode(ALLOW, (*DENY, "softmax", "cross_entropy"), DEVICE),
            ),
            training.contender("float32", "forward", nullcontext),
        )
        found.append(Comparison(f"train step, custom lists, {training.name}", contenders))
    return found


def o2() -> list[Comparison]:
    """Compare level O2."""
    found = []
    for training in map(_Training, NETWORKS):
        low = _unamp(level="O2")
        training.check_equal(("by_hand_low", nullcontext), ("forward", low))
        contenders = (
            training.contender("casts written by hand", "by_hand_low", nullcontext),
            training.contender("unamp", "forward", low, 1.05),
            training.contender("torch.autocast, with its own lists", "forward", _torch),
        )
        found.append(Comparison(f"train step, O2, {training.name}", contenders))
    return found
