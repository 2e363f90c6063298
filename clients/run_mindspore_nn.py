"""mindspore.nn: training steps of its own transformer encoder."""

from contextlib import nullcontext

import mindspore
import numpy as np
from client import measure
from mindspore import nn
from on_mindspore import step_of


def build(region, level="O0"):
    mindspore.set_seed(0)
    np.random.seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    net = nn.TransformerEncoder(layer, 2).set_train()
    called = mindspore.amp.auto_mixed_precision(net, level, mindspore.bfloat16) if level != "O0" else net
    x = mindspore.Tensor(np.random.default_rng(0).normal(size=(4, 16, 64)).astype(np.float32))
    return step_of(net, region, lambda: ((called(x).astype(mindspore.float32) - 1) ** 2).mean())


measure(build, lambda: build(nullcontext, "O2"))
