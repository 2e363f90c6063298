"""A user's own white list.

The numbers are small integers, so that every sum is exact in float16, in any order.
"""

import mindspore as ms
import numpy as np
from mindspore import amp, nn, ops

random = np.random.default_rng(8)


def whole(*shape):
    return ms.Tensor(random.integers(-1, 2, size=shape).astype(np.float32))


net = nn.SequentialCell(
    nn.Dense(4, 4, whole(4, 4), whole(4)), nn.ReLU(), nn.Dense(4, 2, whole(2, 4), whole(2))
)
white = amp.get_white_list()
white.remove(nn.Conv2d)
net = amp.custom_mixed_precision(net, white_list=white)
optimizer = nn.SGD(net.trainable_params(), 0.125)
x, y = whole(4, 4), whole(4, 2)
loss, grads = ms.value_and_grad(lambda: ops.mse_loss(net(x), y), None, optimizer.parameters)()
optimizer(grads)

RESULT = [p.asnumpy() for p in optimizer.parameters]
