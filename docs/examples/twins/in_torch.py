"""The twins in PyTorch."""

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(32, 32) for _ in range(4))

    def forward(self, x):
        q, k, v = (
            p(x).reshape(2, 6, 4, 8).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        scores = torch.matmul(q, k.transpose(-2, -1)) * 8**-0.5
        mixed = torch.matmul(torch.softmax(scores, dim=-1), v)
        return self.out_proj(mixed.transpose(1, 2).reshape(2, 6, 32))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.self_attn, self.norm2 = nn.LayerNorm(32), Attention(), nn.LayerNorm(32)
        self.linear1, self.linear2 = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        x = x + self.self_attn(self.norm1(x))
        return x + self.linear2(F.gelu(self.linear1(self.norm2(x))))


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2),
            nn.Tanh(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.Tanh(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(400, 120),
            nn.Tanh(),
            nn.Linear(120, 84),
            nn.Tanh(),
            nn.Linear(84, 10),
        )

    def forward(self, x):
        return self.classifier(self.features(x))


def build(name, weights):
    if name == "transformer":
        network = Encoder()
        a = network.self_attn
        layers = {
            "n1": "m1",
            "wq": "bq",
            "wk": "bk",
            "wv": "bv",
            "wo": "bo",
            "n2": "m2",
            "w1": "b1",
            "w2": "b2",
        }
        order = [
            network.norm1,
            a.q_proj,
            a.k_proj,
            a.v_proj,
            a.out_proj,
            network.norm2,
            network.linear1,
            network.linear2,
        ]
    else:
        network = LeNet()
        layers = {"c1": "cb1", "c2": "cb2", "w1": "b1", "w2": "b2", "w3": "b3"}
        order = [layer for layer in network.modules() if isinstance(layer, (nn.Conv2d, nn.Linear))]
    with torch.no_grad():
        for layer, (weight, bias) in zip(order, layers.items(), strict=True):
            layer.weight.copy_(torch.from_numpy(weights[weight]))
            layer.bias.copy_(torch.from_numpy(weights[bias]))
    return lambda x: network(torch.from_numpy(x)).detach().numpy()
