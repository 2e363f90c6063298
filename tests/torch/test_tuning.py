"""`unamp.tune` on PyTorch, and all that it says about what it is given."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tuned
from torch import Tensor, nn

import unamp
from unamp import AmpWarning, Policy, amp_warnings

warnings.filterwarnings("ignore", message="on a CPU torch is about", category=AmpWarning)


class Total(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum() / x.numel()


class Soft(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        e = torch.exp(x)
        return e / e.sum(-1, keepdim=True)


class Net(nn.Module):
    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        super().__init__()
        self.first, self.big = nn.Linear(tuned.WIDTH, tuned.WIDTH, False), nn.Linear(tuned.WIDTH, tuned.WIDTH, False)
        self.norm, self.total, self.soft = nn.LayerNorm(tuned.WIDTH), Total(), Soft()
        with torch.no_grad():
            self.first.weight.copy_(torch.from_numpy(weights["first"]))
            self.big.weight.copy_(torch.from_numpy(weights["big"]))

    def forward(self, x: Tensor, many: Tensor) -> tuple[Tensor, ...]:
        h = torch.relu(self.first(x))
        return self.norm(self.big(h)), self.total(many), self.soft(h + 12)


def _trained(network: Net, batch: Sequence[Tensor], scale: float) -> tuple[Tensor, list[Tensor]]:
    loss = network.big(torch.relu(network.first(batch[0]))).square().mean()
    gradients = torch.autograd.grad(loss * scale, [network.first.weight, network.big.weight])
    return loss, [gradient / scale for gradient in gradients]


OF = tuned.Tunable(lambda weights: Net(weights).eval(), torch.from_numpy, _trained)


@pytest.mark.parametrize("promise", tuned.PROMISES)
def test_promises(promise: Any) -> None:
    promise(OF)
