"""A white list of one's own."""

import mindspore as ms
import numpy as np
from mindspore import amp, nn, ops

ms.set_seed(4)
random = np.random.default_rng(4)
white = amp.get_white_list()
white.remove(nn.Conv2d)
net = amp.custom_mixed_precision(nn.SequentialCell(nn.Dense(6, 6), nn.ReLU(), nn.Dense(6, 2)), white_list=white)
optimizer = nn.SGD(net.trainable_params(), 0.1)
x, y = (ms.Tensor(random.normal(size=(8, n)).astype(np.float32)) for n in (6, 2))
step = ms.value_and_grad(lambda: ops.mse_loss(net(x), y), None, optimizer.parameters)
for _ in range(3):
    loss, grads = step()
    optimizer(grads)

RESULT = [p.asnumpy() for p in optimizer.parameters]
