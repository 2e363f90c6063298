"""Level O1 from the module `mindspore.amp`, and a fixed loss scale.

The numbers are small integers, so that every sum is exact in float16, in any order.
"""

import mindspore as ms
import numpy as np
from mindspore import amp, nn, ops

random = np.random.default_rng(10)


def whole(*shape):
    return ms.Tensor(random.integers(-1, 2, size=shape).astype(np.float32))


net = nn.SequentialCell(
    nn.Dense(4, 4, whole(4, 4), whole(4)), nn.ReLU(), nn.Dense(4, 2, whole(2, 4), whole(2))
)
net = amp.auto_mixed_precision(net, amp_level="O1")
optimizer = nn.Momentum(net.trainable_params(), 0.125, 0.5)
scaler = amp.StaticLossScaler(128)
x, y = whole(4, 4), whole(4, 2)
loss, grads = ms.value_and_grad(
    lambda: scaler.scale(ops.mse_loss(net(x), y)), None, optimizer.parameters
)()
optimizer(scaler.unscale(grads))

RESULT = [p.asnumpy() for p in optimizer.parameters]
