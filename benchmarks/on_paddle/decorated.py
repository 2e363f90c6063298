"""Steps of decorated optimizers, beside float32 masters by hand with Paddle's operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle

import unamp
from benchmarks.measure import Comparison, Contender

__all__ = ["comparisons"]

#: The number of linear layers, and their width.
_STACKS = ((4, 64), (4, 256), (3, 1024))
_OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "Momentum": lambda parameters: paddle.optimizer.Momentum(1e-4, parameters=parameters),
    "Adam": lambda parameters: paddle.optimizer.Adam(1e-4, parameters=parameters),
}


class _ByHand:
    """Two casts for each parameter: its gradient to float32, and the master weight back."""

    def __init__(self, network: Any, make: Callable[[Any], Any]) -> None:
        self.low = network.parameters()
        self.masters = [paddle.create_parameter(each.shape, "float32") for each in self.low]
        for low, master in zip(self.low, self.masters, strict=True):
            master.set_value(low)
        network.bfloat16()
        self.optimizer = make(self.masters)

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def step(self) -> None:
        for low, master in zip(self.low, self.masters, strict=True):
            master.grad = low.grad.astype("float32")
        self.optimizer.step()
        for low, master in zip(self.low, self.masters, strict=True):
            paddle.assign(master.astype(low.dtype), output=low)


def comparisons() -> list[Comparison]:
    return [_comparison(name, layers, width) for name in _OPTIMIZERS for layers, width in _STACKS]


def _comparison(name: str, layers: int, width: int) -> Comparison:
    networks = []
    for _ in range(3):
        paddle.seed(0)
        networks.append(
            paddle.nn.Sequential(*(paddle.nn.Linear(width, width) for _ in range(layers)))
        )
    by_hand = _ByHand(networks[0], _OPTIMIZERS[name])
    decorated, plain = (_OPTIMIZERS[name](network.parameters()) for network in networks[1:])
    unamp.decorate(networks[1], decorated, "O2", "bfloat16")
    for network in networks:
        paddle.seed(1)
        for parameter in network.parameters():
            parameter.grad = paddle.randn(parameter.shape).astype(parameter.dtype)
    for _ in range(3):
        by_hand.step()
        decorated.step()
    if not all(
        (a == b).all() for a, b in zip(*(each.parameters() for each in networks[:2]), strict=True)
    ):
        raise RuntimeError(
            "unamp and its baseline do not compute the same; the benchmark would be meaningless"
        )
    contenders = (
        Contender("master weights by hand", "optimizer.step()", {"optimizer": by_hand}),
        Contender("unamp.decorate", "optimizer.step()", {"optimizer": decorated}, goal=1.3),
        Contender("float32", "optimizer.step()", {"optimizer": plain}),
    )
    return Comparison(f"paddle: optimizer step, {name}, {layers} layers of {width}", contenders)
