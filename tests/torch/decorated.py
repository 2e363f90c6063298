"""Networks, steps and losses for the tests of `unamp.decorate`."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from unamp_torch.masters import masters_of

import unamp

LOW = {"float16": torch.float16, "bfloat16": torch.bfloat16}
F32 = torch.float32


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4)
    )


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Unflatten(1, (2, 8)), layer, nn.Flatten(), nn.Linear(16, 4))


NETWORKS = {"mlp": mlp, "conv": conv, "transformer": transformer}


def made(kind: str = "mlp") -> nn.Module:
    torch.manual_seed(7)
    return NETWORKS[kind]()


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and classes, one in eight of them wrong: the loss has a floor."""
    random = torch.Generator().manual_seed(step)
    x = torch.randn(32, 16, generator=random)
    y = (x[:, :4] + x[:, 4:8] * x[:, 8:12]).argmax(1)
    return x, torch.where(torch.arange(32) % 8 == 0, torch.randint(4, (32,), generator=random), y)


def loss_of(network: nn.Module, step: int, *, overflow: bool = False, **policy: Any) -> torch.Tensor:
    x, y = batch(step)
    with unamp.autocast(**policy):
        loss = F.cross_entropy(network(x), y)
        return loss * math.inf if overflow else loss


def evaluated(network: nn.Module, **policy: Any) -> float:
    network.eval()
    with torch.no_grad():
        return sum(loss_of(network, 1000 + step, **policy).item() for step in range(16)) / 16


def values(of: Any) -> list[torch.Tensor]:
    """A network's parameters, or an optimizer's float32 weights: the master weights where it has some."""
    if isinstance(of, nn.Module):
        return [parameter.detach().clone() for parameter in of.parameters()]
    masters = masters_of(of)
    weights = {} if masters is None else masters.weights
    return [weights.get(p, p).detach().clone() for group in of.param_groups for p in group["params"]]


def same(first: Any, second: Any) -> bool:
    return all(torch.equal(a, b) and a.dtype is b.dtype for a, b in zip(values(first), values(second), strict=True))


def sgd(network: nn.Module, **kwargs: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(network.parameters(), **{"lr": 0.1} | kwargs)


@functools.cache
def float32_loss(kind: str) -> float:
    network = made(kind)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    for step in range(200):
        optimizer.zero_grad()
        loss_of(network, step, enabled=False).backward()
        optimizer.step()
    return evaluated(network, enabled=False)
