"""A network whose second run would differ from its first."""

import paddle
import paddle.nn.functional as F
from paddle import nn


class Net(nn.Layer):
    """Layers with state, with random numbers, and with operations in place."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1D(8)
        self.drop = nn.Dropout(0.5)
        self.random = nn.RReLU()
        self.lstm = nn.LSTM(8, 4, num_layers=2, dropout=0.5)
        self.gru = nn.GRU(4, 4)
        self.attention = nn.MultiHeadAttention(8, 2, dropout=0.1)

    def forward(self, x):
        h = self.random(self.drop(self.norm(self.first(x))))
        h = h.scale_(0.5)
        out, _ = self.lstm(h.unsqueeze(0))
        out, _ = self.gru(out)
        seen = self.attention(h.unsqueeze(0))
        return (
            F.log_softmax(out, -1).mean()
            + paddle.einsum("bij,bik->jk", seen, seen).sum()
            + (x * x).sum()
        )
