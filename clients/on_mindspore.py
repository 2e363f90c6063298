"""A training step of a cell; the scripts for MindSpore share it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import mindspore
from client import Region, Step
from mindspore import nn

# With NumPy 2, MindSpore's first call of some functions raises; later calls work.
with suppress(SystemError):
    mindspore.mint.add(mindspore.Tensor(1.0), mindspore.Tensor(1.0), alpha=1)


def step_of(cell: nn.Cell, region: Region, loss_of: Callable[[], mindspore.Tensor]) -> Step:
    """Return a step of SGD that computes the loss in a region."""
    optimizer = nn.SGD(cell.trainable_params(), 1e-3)

    def forward() -> mindspore.Tensor:
        with region():
            return loss_of()

    gradient = mindspore.value_and_grad(forward, None, optimizer.parameters)

    def step() -> float:
        loss, gradients = gradient()
        optimizer(gradients)
        return float(loss.asnumpy())

    return step
