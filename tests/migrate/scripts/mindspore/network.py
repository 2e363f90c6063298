"""A train network at O0 around a network of `auto_mixed_precision`, also at O0."""

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.train.amp import auto_mixed_precision, build_train_network

ms.set_seed(3)
random = np.random.default_rng(3)
net = auto_mixed_precision(nn.SequentialCell(nn.Dense(5, 10), nn.ReLU(), nn.Dense(10, 1)), "O0")
optimizer = nn.SGD(net.trainable_params(), 0.1)
train = build_train_network(net, optimizer, nn.MSELoss(), level="O0")
x, y = (ms.Tensor(random.normal(size=(16, n)).astype(np.float32)) for n in (5, 1))
losses = [float(train(x, y)) for _ in range(3)]

RESULT = [p.asnumpy() for p in optimizer.parameters] + losses
