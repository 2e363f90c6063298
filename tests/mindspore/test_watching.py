"""The monitor on MindSpore follows gradients, a tuple in the optimizer's order."""

from __future__ import annotations

import mindspore
import numpy as np
import pytest
from mindspore import nn, ops
from watched import finds_the_layer_that_underflows

import unamp

X = mindspore.Tensor(np.random.default_rng(0).normal(size=(16, 8)).astype("float32"))


class Net(nn.Cell):
    """A network whose layer `tiny` is behind a small factor.

    The factor makes the layer's gradient subnormal in float16.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.tiny, self.last = nn.Dense(8, 8), nn.Dense(8, 8), nn.Dense(8, 4)

    def construct(self, x):
        return self.last(self.first(x) + 1e-5 * self.tiny(x))


def test_a_layer_that_underflows_is_found_by_its_name() -> None:
    network, scaler = Net(), unamp.GradScaler(1.0)
    optimizer = nn.SGD(network.trainable_params(), 1e-2)
    watch = unamp.watch(network, optimizer, scaler=scaler, every=1)

    def scaled():
        with unamp.autocast(dtype="float16"):
            out = network(X)
        return scaler.scale(ops.square(out.astype(mindspore.float32)).mean())

    def step() -> None:
        gradients = mindspore.value_and_grad(scaled, None, optimizer.parameters)()[1]
        with watch.step(gradients):
            scaler.step(optimizer, gradients=gradients)
            scaler.update()

    finds_the_layer_that_underflows(watch, 2, step)


def test_low_parameters_tell_what_rounding_swallows() -> None:
    network = nn.Dense(8, 4)
    for parameter in network.trainable_params():
        parameter.set_dtype(mindspore.float16)
    optimizer = nn.SGD(network.trainable_params(), 1e-7)
    watch = unamp.watch(network, optimizer)
    gradients = tuple(ops.ones_like(parameter) for parameter in optimizer.parameters)
    with watch.step(gradients):
        optimizer(gradients)
    assert all(
        layer.swallowed > 0.9
        for layer in watch.history.samples[0].layers
        if layer.layer == "weight"
    )
    with (
        pytest.raises(ValueError, match="1 gradients for 2 parameters"),
        unamp.watch(network, optimizer).step(gradients[:1]),
    ):
        pass
