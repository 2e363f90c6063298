"""A network whose second run would differ from its first."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Net(nn.Module):
    """Layers with state, with random numbers, and with operations in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)
        self.random = nn.RReLU()
        self.lstm = nn.LSTM(8, 4, num_layers=2, dropout=0.5, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.random(self.drop(self.norm(self.first(x))))
        h = F.relu(h.mul_(0.5), inplace=True)
        out, _ = self.lstm(h[None])
        seen, _ = self.attention(h[None], h[None], h[None], need_weights=False)
        return (
            torch.log_softmax(out, -1).mean()
            + torch.einsum("bij,bik->jk", seen, seen).sum()
            + x.square().sum()
        )
