"""`unamp.tune` on Paddle keeps the promises of the module `tuned`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle
import pytest
import tuned
from paddle import nn
from tuned import test_promises  # noqa: F401

import unamp


class Total(nn.Layer):
    def forward(self, x: Any) -> Any:
        return x.sum() / x.size


class Soft(nn.Layer):
    def forward(self, x: Any) -> Any:
        e = paddle.exp(x)
        return e / e.sum(-1, keepdim=True)


class Net(nn.Layer):
    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        super().__init__()
        self.first = nn.Linear(tuned.WIDTH, tuned.WIDTH, bias_attr=False)
        self.big = nn.Linear(tuned.WIDTH, tuned.WIDTH, bias_attr=False)
        self.norm, self.total, self.soft = nn.LayerNorm(tuned.WIDTH), Total(), Soft()
        self.first.weight.set_value(weights["first"].T)
        self.big.weight.set_value(weights["big"].T)

    def forward(self, x: Any, many: Any) -> Any:
        h = nn.functional.relu(self.first(x))
        return self.norm(self.big(h)), self.total(many), self.soft(h + 12)


def _made(weights: dict[str, np.ndarray]) -> Net:
    network = Net(weights)
    network.eval()
    return network


def _trained(network: Net, batch: Sequence[Any], scale: float) -> tuple[Any, list[Any]]:
    loss = (network.big(nn.functional.relu(network.first(batch[0]))) ** 2).mean()
    gradients = paddle.grad(loss * scale, [network.first.weight, network.big.weight])
    return loss, [gradient / scale for gradient in gradients]


OF = tuned.Tunable(_made, paddle.to_tensor, _trained)


def test_dropout_is_named() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    with pytest.raises(ValueError, match=r"dropout is on in 1 \(Dropout\); call network.eval\(\)"):
        unamp.tune(network, network, [paddle.ones([8, 4])])
