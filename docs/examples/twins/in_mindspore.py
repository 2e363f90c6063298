"""The twins in MindSpore."""

from contextlib import suppress

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops


class Encoder(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layernorm1, self.layernorm2 = (
            nn.LayerNorm((32,), epsilon=1e-5),
            nn.LayerNorm((32,), epsilon=1e-5),
        )
        self.dense_q, self.dense_k, self.dense_v, self.projection = (
            nn.Dense(32, 32) for _ in range(4)
        )
        self.mapping, self.mapping_back = nn.Dense(32, 64), nn.Dense(64, 32)

    def construct(self, x):
        h = self.layernorm1(x)
        q, k, v = (
            p(h).reshape((2, 6, 4, 8)).transpose(0, 2, 1, 3)
            for p in (self.dense_q, self.dense_k, self.dense_v)
        )
        scores = ops.matmul(q, k.transpose(0, 1, 3, 2)) * 8**-0.5
        mixed = ops.matmul(ops.softmax(scores, axis=-1), v)
        x = x + self.projection(mixed.transpose(0, 2, 1, 3).reshape((2, 6, 32)))
        return x + self.mapping_back(ops.gelu(self.mapping(self.layernorm2(x)), approximate="none"))


class LeNet(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, pad_mode="pad", padding=2, has_bias=True)
        self.conv2 = nn.Conv2d(6, 16, 5, pad_mode="valid", has_bias=True)
        self.tanh, self.max_pool2d = nn.Tanh(), nn.MaxPool2d(2, 2)
        self.fc1, self.fc2, self.fc3 = nn.Dense(400, 120), nn.Dense(120, 84), nn.Dense(84, 10)

    def construct(self, x):
        h = self.max_pool2d(self.tanh(self.conv1(x)))
        h = self.max_pool2d(self.tanh(self.conv2(h)))
        h = self.tanh(self.fc1(h.reshape((2, 400))))
        return self.fc3(self.tanh(self.fc2(h)))


def build(name, weights):
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    with suppress(SystemError):
        # its first call with numbers fails with a NumPy that it was not built for
        Tensor(np.ones(1, np.float32)).reshape((1, 1))
    if name == "transformer":
        n = Encoder()
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
            n.layernorm1,
            n.dense_q,
            n.dense_k,
            n.dense_v,
            n.projection,
            n.layernorm2,
            n.mapping,
            n.mapping_back,
        ]
    else:
        n = LeNet()
        layers = {"c1": "cb1", "c2": "cb2", "w1": "b1", "w2": "b2", "w3": "b3"}
        order = [n.conv1, n.conv2, n.fc1, n.fc2, n.fc3]
    for layer, (weight, bias) in zip(order, layers.items(), strict=True):
        norm = isinstance(layer, nn.LayerNorm)
        (layer.gamma if norm else layer.weight).set_data(Tensor(weights[weight]))
        (layer.beta if norm else layer.bias).set_data(Tensor(weights[bias]))
    return lambda x: n(Tensor(x)).asnumpy()
