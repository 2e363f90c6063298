"""The monitor on Paddle counts what the gradients hold, and disturbs nothing."""

from __future__ import annotations

import paddle
import pytest
from watched import finds_the_layer_that_underflows, swallowed

import unamp


class Net(paddle.nn.Layer):
    """A network whose layer `tiny` is behind a small factor.

    The factor makes the layer's gradient subnormal in float16.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.tiny, self.last = (
            paddle.nn.Linear(8, 8),
            paddle.nn.Linear(8, 8),
            paddle.nn.Linear(8, 4),
        )

    def forward(self, x):
        return self.last(self.first(x) + 1e-5 * self.tiny(x))


def test_a_layer_that_underflows_is_found_by_its_name() -> None:
    paddle.seed(0)
    network, x = Net(), paddle.randn((16, 8))
    optimizer, scaler = (
        paddle.optimizer.SGD(1e-2, parameters=network.parameters()),
        unamp.GradScaler(1.0),
    )
    watch = unamp.watch(network, optimizer, scaler=scaler, every=1)

    def step() -> None:
        with unamp.autocast(dtype="float16"):
            loss = network(x).cast("float32").square().mean()
        scaler.scale(loss).backward()
        with watch.step():
            scaler.step(optimizer)
            scaler.update()
        optimizer.clear_grad()

    finds_the_layer_that_underflows(watch, 2, step)


def test_low_parameters_tell_what_rounding_swallows() -> None:
    paddle.seed(0)
    network = paddle.nn.Linear(8, 4).to(dtype="bfloat16")
    optimizer = paddle.optimizer.SGD(1e-3, parameters=network.parameters())
    watch = unamp.watch(network, optimizer, dtype="bfloat16")
    with unamp.autocast(dtype="bfloat16"):
        loss = network(paddle.randn((16, 8)).cast("bfloat16")).cast("float32").square().mean()
    loss.backward()

    def row(tensors):
        return [value for each in tensors for value in each.cast("float32").reshape([-1]).tolist()]

    before, gradients = row(network.parameters()), row(each.grad for each in network.parameters())
    with watch.step():
        optimizer.step()
    found = [layer.swallowed for layer in watch.history.samples[0].layers]
    assert 0.0 < found[0] < 1.0  # the weight's share; the bias was zero, and moves
    both = (
        sum(
            each * layer.size
            for each, layer in zip(found, watch.history.samples[0].layers, strict=True)
        )
        / 36
    )
    assert both == pytest.approx(swallowed(before, gradients, row(network.parameters())))
