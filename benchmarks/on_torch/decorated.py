"""Steps of decorated optimizers, beside float32 masters by hand with `torch._foreach_*`.

There is no forward and no backward pass: only the cost of the step is compared, and gradients stay
the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from unamp_torch.compiled import library

import unamp
from benchmarks.measure import Comparison, Contender
from benchmarks.on_torch.networks import DEVICE

__all__ = ["comparisons"]

LOW = torch.bfloat16
#: The number of linear layers, and their width.
STACKS = ((4, 64), (4, 256), (3, 1024))
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=1e-4),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-4),
}


class _ByHand:
    """The code that a user would write: float32 copies, and an optimizer of the copies.

    One operator does all casts in each direction.
    """

    def __init__(
        self, network: torch.nn.Module, make: Callable[[Any], torch.optim.Optimizer]
    ) -> None:
        self.low = list(network.parameters())
        self.masters = [torch.nn.Parameter(parameter.detach().float()) for parameter in self.low]
        self.optimizer = make(self.masters)
        for parameter in self.low:
            parameter.data = parameter.data.to(LOW)

    @torch.no_grad()
    def step(self) -> None:
        gradients: list[Any] = [parameter.grad for parameter in self.low]
        wide = [torch.empty_like(gradient, dtype=torch.float32) for gradient in gradients]
        torch._foreach_copy_(wide, gradients)
        for master, gradient in zip(self.masters, wide, strict=True):
            master.grad = gradient
        self.optimizer.step()
        torch._foreach_copy_(self.low, self.masters)


def comparisons() -> list[Comparison]:
    return [_comparison(name, layers, width) for name in OPTIMIZERS for layers, width in STACKS]


def _comparison(name: str, layers: int, width: int) -> Comparison:
    def stack() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers))).to(
            DEVICE
        )

    networks = [stack(), stack(), stack()]
    by_hand = _ByHand(networks[0], OPTIMIZERS[name])
    decorated, plain = (OPTIMIZERS[name](network.parameters()) for network in networks[1:])
    unamp.decorate(networks[1], decorated, "O2", LOW)
    for network in networks:
        torch.manual_seed(1)
        for parameter in network.parameters():
            parameter.grad = torch.randn(parameter.shape).to(parameter)
    for _ in range(3):
        by_hand.step()
        decorated.step()
    if not all(map(torch.equal, networks[0].parameters(), networks[1].parameters())):
        raise RuntimeError(
            "unamp and its baseline do not compute the same; the benchmark would be meaningless"
        )
    goal = 1.15 if library is not None else 1.05 if width >= 1024 else 1.4
    contenders = (
        Contender("master weights by hand", "optimizer.step()", {"optimizer": by_hand}),
        Contender("unamp.decorate", "optimizer.step()", {"optimizer": decorated}, goal=goal),
        Contender("float32", "optimizer.step()", {"optimizer": plain}),
    )
    return Comparison(f"optimizer step, {name}, {layers} layers of {width}", contenders)
