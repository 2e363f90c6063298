"""mindcv: training steps of a residual network.

MindSpore's own bfloat16 has no convolution on a CPU.
"""

import mindspore
import numpy as np
from client import measure
from mindcv.models import create_model
from mindspore import ops
from on_mindspore import step_of


def build(region):
    mindspore.set_seed(0)
    net = create_model("resnet18", num_classes=10).set_train()
    x = mindspore.Tensor(np.random.default_rng(0).normal(size=(4, 3, 64, 64)).astype(np.float32))
    labels = mindspore.Tensor(np.arange(4, dtype=np.int32))
    return step_of(net, region, lambda: ops.cross_entropy(net(x).astype(mindspore.float32), labels))


measure(build)
