"""A training step of a layer; the scripts for Paddle share it."""

from __future__ import annotations

from collections.abc import Callable

import paddle
from client import Region, Step


def step_of(model: paddle.nn.Layer, region: Region, loss_of: Callable[[], paddle.Tensor]) -> Step:
    """Return a step of SGD that computes the loss in a region."""
    optimizer = paddle.optimizer.SGD(1e-3, parameters=model.parameters())

    def step() -> float:
        with region():
            loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        return float(loss)

    return step
