"""The twins in PaddlePaddle."""

import paddle
from paddle import nn
from paddle.nn import functional as F


class Encoder(nn.Layer):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.query, self.key, self.value, self.output = (nn.Linear(32, 32) for _ in range(4))
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        h = self.ln_1(x)
        q, k, v = (
            p(h).reshape([2, 6, 4, 8]).transpose([0, 2, 1, 3])
            for p in (self.query, self.key, self.value)
        )
        scores = paddle.matmul(q, k.transpose([0, 1, 3, 2])) * 8**-0.5
        mixed = paddle.matmul(F.softmax(scores, axis=-1), v)
        x = x + self.output(mixed.transpose([0, 2, 1, 3]).reshape([2, 6, 32]))
        return x + self.down(F.gelu(self.up(self.ln_2(x))))


class LeNet(nn.Layer):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.pool = (
            nn.Conv2D(1, 6, 5, padding=2),
            nn.Conv2D(6, 16, 5),
            nn.MaxPool2D(2),
        )
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        h = self.pool(F.tanh(self.conv1(x)))
        h = self.pool(F.tanh(self.conv2(h)))
        h = F.tanh(self.fc1(paddle.flatten(h, 1)))
        return self.fc3(F.tanh(self.fc2(h)))


def build(name, weights):
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
        order = [n.ln_1, n.query, n.key, n.value, n.output, n.ln_2, n.up, n.down]
    else:
        n = LeNet()
        layers = {"c1": "cb1", "c2": "cb2", "w1": "b1", "w2": "b2", "w3": "b3"}
        order = [n.conv1, n.conv2, n.fc1, n.fc2, n.fc3]
    for layer, (weight, bias) in zip(order, layers.items(), strict=True):
        array = weights[weight]
        layer.weight.set_value(array.T if isinstance(layer, nn.Linear) else array)
        layer.bias.set_value(weights[bias])
    return lambda x: n(paddle.to_tensor(x)).numpy()
