"""Level O2, with gradients that are values and a scale that moves."""

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.amp import DynamicLossScaler, all_finite, auto_mixed_precision

ms.set_seed(0)
random = np.random.default_rng(0)
net = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 4))
net = auto_mixed_precision(net, "O2")
optimizer = nn.SGD(net.trainable_params(), 0.1)
scaler = DynamicLossScaler(scale_value=2**8, scale_factor=2, scale_window=2)
x, y = (ms.Tensor(random.normal(size=(32, n)).astype(np.float32)) for n in (8, 4))


def forward(data, label):
    return scaler.scale(ops.mse_loss(net(data), label))


step = ms.value_and_grad(forward, None, optimizer.parameters)
for _ in range(4):
    loss, grads = step(x, y)
    if all_finite(grads):
        optimizer(scaler.unscale(grads))
    scaler.adjust(all_finite(grads))

RESULT = [p.asnumpy() for p in optimizer.parameters]
