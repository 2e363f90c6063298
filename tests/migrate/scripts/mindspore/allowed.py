"""Level O1 by the module, and a scale that stays."""

import mindspore as ms
import numpy as np
from mindspore import amp, nn, ops

ms.set_seed(1)
random = np.random.default_rng(1)
net = amp.auto_mixed_precision(nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 3)), amp_level="O1")
optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
scaler = amp.StaticLossScaler(128)
x, y = (ms.Tensor(random.normal(size=(16, n)).astype(np.float32)) for n in (6, 3))
step = ms.value_and_grad(lambda: scaler.scale(ops.mse_loss(net(x), y)), None, optimizer.parameters)
for _ in range(3):
    loss, grads = step()
    optimizer(scaler.unscale(grads))

RESULT = [p.asnumpy() for p in optimizer.parameters]
