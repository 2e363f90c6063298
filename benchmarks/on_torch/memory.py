"""Peak memory of training; see `benchmarks.memory`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unamp
from benchmarks import memory
from benchmarks.measure import Comparison
from benchmarks.memory import Meter, Size, Way

__all__ = ["comparisons", "meter", "prepare"]

_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def comparisons() -> Iterator[Comparison]:
    own = [
        Way(network, "torch.autocast", "", dtype)
        for network in ("encoder", "wide")
        for dtype in ("bfloat16", "float16")
    ]
    return memory.comparisons("PyTorch", __name__, own)


def meter() -> Meter:
    if _DEVICE == "cpu":
        return memory.resident()
    return Meter(
        torch.cuda.memory_allocated,
        torch.cuda.reset_peak_memory_stats,
        torch.cuda.max_memory_allocated,
    )


class _Layer(nn.Module):
    """An encoder layer, with its attention written out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = 4
        self.norm_one, self.norm_two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = (
            self.qkv(self.norm_one(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        )
        q, k, v = split.unbind(0)
        weights = F.softmax(q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5, dim=-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm_two(x))))


def _network(way: Way, size: Size) -> tuple[nn.Module, Tensor, torch.optim.Optimizer]:
    torch.manual_seed(0)
    if way.network == "encoder":
        network = nn.Sequential(*(_Layer(size.width) for _ in range(size.layers))).to(_DEVICE)
        x = torch.randn(size.sequences, size.length, size.width, device=_DEVICE)
        return network, x, torch.optim.SGD(network.parameters(), lr=1e-4)
    layers = [
        layer
        for _ in range(size.layers)
        for layer in (nn.Linear(size.width, size.width), nn.ReLU())
    ]
    network = nn.Sequential(*layers).to(_DEVICE)
    return (
        network,
        torch.randn(size.sequences, size.width, device=_DEVICE),
        torch.optim.Adam(network.parameters(), lr=1e-4),
    )


def _region(way: Way) -> Callable[[], AbstractContextManager[Any]]:
    if way.by == "torch.autocast":
        return lambda: torch.autocast(_DEVICE, getattr(torch, way.dtype))
    return lambda: way.region(_DEVICE)


def prepare(way: Way, size: Size) -> Callable[[], None]:
    network, x, optimizer = _network(way, size)
    if way.decorated:
        unamp.decorate(network, optimizer, way.level, way.dtype, master_weight=way.masters)
    region = _region(way)

    def step() -> None:
        optimizer.zero_grad()
        with region():
            y = network(x)
        loss = y.float().square().mean()
        del y  # a function that computes the loss would free it, too
        loss.backward()
        optimizer.step()
        loss.item()

    return step
