"""mindspore.nn: training steps of its own transformer encoder."""

import mindspore
import numpy as np
from client import measure
from mindspore import nn
from on_mindspore import step_of


def build(region):
    mindspore.set_seed(0)
    np.random.seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    net = nn.TransformerEncoder(layer, 2).set_train()
    x = mindspore.Tensor(np.random.default_rng(0).normal(size=(4, 16, 64)).astype(np.float32))
    return step_of(net, region, lambda: (net(x).astype(mindspore.float32) ** 4).mean())


measure(build)
