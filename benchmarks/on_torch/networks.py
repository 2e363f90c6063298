"""The networks whose training step is timed, also with casts written by hand.

They are small: a step takes some ten milliseconds, so that a cost of each operation shows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["ALLOW", "DENY", "DEVICE", "NETWORKS", "Block", "ConvNet", "Mlp"]

#: Training steps run on a GPU where there is one.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

#: The custom lists, beside those of the default preset. Each network has operations of both.
ALLOW = ("add", "layer_norm")
DENY = ("gelu", "adaptive_avg_pool2d")

_LOW = torch.bfloat16


class Mlp(nn.Module):
    """Three layers with GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = (
            nn.Linear(512, 1024),
            nn.Linear(1024, 1024),
            nn.Linear(1024, 10),
        )

    @staticmethod
    def data() -> tuple[Tensor, Tensor]:
        return torch.randn(64, 512), torch.randint(10, (64,))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = F.gelu(_linear(self.first, x))
        x = F.gelu(_linear(self.second, x))
        return F.cross_entropy(_linear(self.last, x), labels)

    def by_hand(self, x: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss with the casts of the custom lists."""
        x = F.gelu(_low_linear(self.first, x).float())
        x = F.gelu(_low_linear(self.second, x).float())
        return F.cross_entropy(_low_linear(self.last, x).float(), labels)

    def by_hand_low(self, x: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss with the casts of O2."""
        x = F.gelu(_low_linear(self.first, x))
        x = F.gelu(_low_linear(self.second, x))
        return F.cross_entropy(_low_linear(self.last, x).float(), labels)


class ConvNet(nn.Module):
    """A convolution, a residual block, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one, self.two = (
            nn.Conv2d(c, 32, 3, padding=1, bias=False) for c in (3, 32, 32)
        )
        self.norm_stem, self.norm_one, self.norm_two = (nn.BatchNorm2d(32) for _ in range(3))
        self.last = nn.Linear(32 * 16, 10)

    @staticmethod
    def data() -> tuple[Tensor, Tensor]:
        return torch.randn(8, 3, 24, 24), torch.randint(10, (8,))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = F.relu(self.norm_stem(_conv(self.stem, x)))
        y = F.relu(self.norm_one(_conv(self.one, x)))
        x = F.relu(x + self.norm_two(_conv(self.two, y)))
        x = F.adaptive_avg_pool2d(x, 4).flatten(1)
        return F.cross_entropy(_linear(self.last, x), labels)

    def by_hand(self, x: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss with the casts of the custom lists."""
        x = F.relu(self.norm_stem(_low_conv(self.stem, x)))
        y = F.relu(self.norm_one(_low_conv(self.one, x)))
        x = F.relu(x + self.norm_two(_low_conv(self.two, y)))
        x = F.adaptive_avg_pool2d(x.float(), 4).flatten(1)
        return F.cross_entropy(_low_linear(self.last, x).float(), labels)

    def by_hand_low(self, x: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss with the casts of O2."""
        x = F.relu(self.norm_stem(_low_conv(self.stem, x).float()).to(_LOW))
        y = F.relu(self.norm_one(_low_conv(self.one, x).float()).to(_LOW))
        x = F.relu(x + self.norm_two(_low_conv(self.two, y).float()).to(_LOW))
        x = F.adaptive_avg_pool2d(x, 4).flatten(1)
        return F.cross_entropy(_low_linear(self.last, x).float(), labels)


class Block(nn.Module):
    """A transformer encoder block, with its attention written out."""

    def __init__(self, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.norm_one, self.norm_two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.last = nn.Linear(width, 10)

    @staticmethod
    def data() -> tuple[Tensor, Tensor]:
        return torch.randn(4, 64, 256), torch.randint(10, (4,))

    def _split(self, qkv: Tensor) -> tuple[Tensor, ...]:
        batch, length, width = qkv.shape
        return (
            qkv.view(batch, length, 3, self.heads, width // (3 * self.heads))
            .permute(2, 0, 3, 1, 4)
            .unbind(0)
        )

    @staticmethod
    def _join(heads: Tensor) -> Tensor:
        return heads.transpose(1, 2).flatten(2)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        q, k, v = self._split(_linear(self.qkv, self.norm_one(x)))
        weights = F.softmax(q @ k.transpose(-1, -2) * self.scale, dim=-1)
        x = x + _linear(self.out, self._join(weights @ v))
        x = x + _linear(self.down, F.gelu(_linear(self.up, self.norm_two(x))))
        return F.cross_entropy(_linear(self.last, x[:, 0]), labels)

    def by_hand(self, x: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss with the casts of the custom lists."""
        q, k, v = self._split(_low_linear(self.qkv, _low_norm(self.norm_one, x)))
        weights = F.softmax((q @ k.transpose(-1, -2) * self.scale).float(), dim=-1)
        x = x.to(_LOW) + _low_linear(self.out, self._join(weights.to(_LOW) @ v))
        x = x + _low_linear(
            self.down, F.gelu(_low_linear(self.up, _low_norm(self.norm_two, x)).float())
        )
        return F.cross_entropy(_low_linear(self.last, x[:, 0]).float(), labels)

    def by_hand_low(self, x: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss with the casts of O2."""
        q, k, v = self._split(_low_linear(self.qkv, self.norm_one(x)))
        weights = F.softmax(q @ k.transpose(-1, -2) * self.scale, dim=-1)
        x = x.to(_LOW) + _low_linear(self.out, self._join(weights @ v))
        x = x + _low_linear(self.down, F.gelu(_low_linear(self.up, self.norm_two(x.float()))))
        return F.cross_entropy(_low_linear(self.last, x[:, 0]).float(), labels)


NETWORKS: dict[str, Callable[[], Mlp | ConvNet | Block]] = {
    "MLP": Mlp,
    "conv net": ConvNet,
    "transformer block": Block,
}


# Functions, not layers: the call of a layer costs time, too, and only the casts are compared.


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    return F.linear(x, layer.weight, layer.bias)


def _conv(layer: nn.Conv2d, x: Tensor) -> Tensor:
    return F.conv2d(x, layer.weight, padding=layer.padding)


def _low_linear(layer: nn.Linear, x: Tensor) -> Tensor:
    return F.linear(x.to(_LOW), layer.weight.to(_LOW), layer.bias.to(_LOW))


def _low_conv(layer: nn.Conv2d, x: Tensor) -> Tensor:
    return F.conv2d(x.to(_LOW), layer.weight.to(_LOW), padding=layer.padding)


def _low_norm(layer: nn.LayerNorm, x: Tensor) -> Tensor:
    x = x.to(_LOW)
    # CUDA has no kernel for a low input beside float32 parameters.
    return layer(x) if DEVICE == "cpu" else layer(x.float()).to(_LOW)
