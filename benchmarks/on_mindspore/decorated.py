"""Steps of decorated optimizers, beside float32 masters by hand with MindSpore's operators."""

from __future__ import annotations

import time
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, nn

import unamp
from benchmarks.measure import Comparison, Contender

__all__ = ["comparisons"]

#: The number of dense layers, and their width.
_STACKS = ((4, 64), (4, 256), (3, 1024))


class _ByHand:
    """Two casts for each parameter: its gradient to float32, and the master weight back."""

    def __init__(self, network: Any) -> None:
        self.low = network.trainable_params()
        self.masters = [Parameter(each.asnumpy(), name=f"master.{each.name}") for each in self.low]
        for each in self.low:
            each.set_dtype(mindspore.bfloat16)
        self.optimizer = nn.Adam(self.masters, 1e-4)

    def __call__(self, gradients: Any) -> None:
        self.optimizer(tuple(each.astype(mindspore.float32) for each in gradients))
        for low, master in zip(self.low, self.masters, strict=True):
            low.assign_value(master.astype(mindspore.bfloat16))


def comparisons() -> list[Comparison]:
    mindspore.set_context(pynative_synchronize=True, runtime_num_threads=1, inter_op_parallel_num=1)
    return [_comparison(layers, width) for layers, width in _STACKS]


def _comparison(layers: int, width: int) -> Comparison:
    networks = []
    for _ in range(3):
        mindspore.set_seed(0)
        networks.append(nn.SequentialCell(*(nn.Dense(width, width) for _ in range(layers))))
    shapes = [each.shape for each in networks[0].trainable_params()]
    by_hand = _ByHand(networks[0])
    decorated, plain = (nn.Adam(network.trainable_params(), 1e-4) for network in networks[1:])
    unamp.decorate(networks[1], decorated, "O2", "bfloat16")
    random = np.random.default_rng(0)
    wide = [mindspore.Tensor(random.standard_normal(shape).astype(np.float32)) for shape in shapes]
    low = tuple(each.astype(mindspore.bfloat16) for each in wide)

    def contender(
        name: str, optimizer: Any, gradients: Any, goal: float | None = None
    ) -> Contender:
        names = {
            "optimizer": optimizer,
            "gradients": gradients,
            "finish": mindspore.runtime.synchronize,
        }
        return Contender(
            name, "optimizer(gradients); finish()", names, goal=goal, timer=time.process_time
        )

    contenders = (
        contender("master weights by hand", by_hand, low),
        contender("unamp.decorate", decorated, low, 1.1 if width >= 1024 else 1.3),
        contender("float32", plain, tuple(wide)),
    )
    return Comparison(f"mindspore: optimizer step, Adam, {layers} layers of {width}", contenders)
