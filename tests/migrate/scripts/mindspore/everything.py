"""Level O3, by the whole path."""

import mindspore as ms
import numpy as np
from mindspore import nn, ops

ms.set_seed(2)
random = np.random.default_rng(2)
net = ms.amp.auto_mixed_precision(nn.SequentialCell(nn.Dense(4, 8), nn.Sigmoid(), nn.Dense(8, 2)), "O3", ms.float16)
optimizer = nn.SGD(net.trainable_params(), 0.05)
x, y = (ms.Tensor(random.normal(size=(8, n)).astype(np.float32)) for n in (4, 2))
step = ms.value_and_grad(lambda: ops.mse_loss(net(x), y), None, optimizer.parameters)
for _ in range(3):
    loss, grads = step()
    optimizer(grads)

RESULT = [p.asnumpy() for p in optimizer.parameters]
