"""Level O2, with gradients that are values and a scale that moves.

The numbers are small integers, so that every sum is exact in float16, in any order.
"""

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.amp import DynamicLossScaler, all_finite, auto_mixed_precision

random = np.random.default_rng(9)


def whole(*shape):
    return ms.Tensor(random.integers(-1, 2, size=shape).astype(np.float32))


net = nn.SequentialCell(
    nn.Dense(4, 4, whole(4, 4), whole(4)), nn.ReLU(), nn.Dense(4, 2, whole(2, 4), whole(2))
)
net = auto_mixed_precision(net, "O2")
optimizer = nn.SGD(net.trainable_params(), 0.125)
scaler = DynamicLossScaler(scale_value=2**8, scale_factor=2, scale_window=1)
x, y = whole(4, 4), whole(4, 2)


def forward(data, label):
    return scaler.scale(ops.mse_loss(net(data), label))


loss, grads = ms.value_and_grad(forward, None, optimizer.parameters)(x, y)
finite = all_finite(grads)
if finite:
    optimizer(scaler.unscale(grads))
scaler.adjust(finite)

scale = scaler.scale_value
RESULT = [p.asnumpy() for p in optimizer.parameters] + [
    float(scale.asnumpy() if isinstance(scale, ms.Tensor) else scale)
]
