"""`unamp.tune` on MindSpore keeps the promises of the module `tuned`, in PyNative mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import tuned
from mindspore import nn, ops
from tuned import test_promises  # noqa: F401

import unamp


class Total(nn.Cell):
    def construct(self, x: Any) -> Any:
        return x.sum() / x.size


class Soft(nn.Cell):
    def construct(self, x: Any) -> Any:
        e = ops.exp(x)
        return e / e.sum(-1, keepdims=True)


class Net(nn.Cell):
    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        super().__init__()
        self.first = nn.Dense(tuned.WIDTH, tuned.WIDTH, has_bias=False)
        self.big = nn.Dense(tuned.WIDTH, tuned.WIDTH, has_bias=False)
        self.norm, self.total, self.soft = nn.LayerNorm((tuned.WIDTH,)), Total(), Soft()
        self.first.weight.set_data(ms.Tensor(weights["first"]))
        self.big.weight.set_data(ms.Tensor(weights["big"]))

    def construct(self, x: Any, many: Any) -> Any:
        h = ops.relu(self.first(x))
        return self.norm(self.big(h)), self.total(many), self.soft(h + 12)


def _trained(network: Net, batch: Sequence[Any], scale: float) -> tuple[Any, list[Any]]:
    def scaled(x: Any) -> tuple[Any, Any]:
        loss = (network.big(ops.relu(network.first(x))) ** 2).mean()
        return loss * scale, loss

    parameters = [network.first.weight, network.big.weight]
    (_, loss), gradients = ms.value_and_grad(scaled, None, parameters, has_aux=True)(batch[0])
    return loss, [gradient / scale for gradient in gradients]


OF = tuned.Tunable(Net, ms.Tensor, _trained)


def test_dropout_is_named() -> None:
    network = nn.SequentialCell(nn.Dense(4, 4), nn.Dropout(p=0.5)).set_train()
    with pytest.raises(
        ValueError,
        match=r"dropout is on in 1 \(Dropout\); call .*network.set_train\(False\) in MindSpore",
    ):
        unamp.tune(network, network, [ms.Tensor(np.ones((8, 4), "float32"))])
