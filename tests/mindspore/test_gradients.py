"""`unamp.trace(gradients=True)` records the gradients of MindSpore's operations."""

from __future__ import annotations

import differentiated
import mindspore
import numpy as np
import pytest
from differentiated import test_every_framework_promises  # noqa: F401
from mindspore import Tensor, nn, ops

import unamp


def network() -> nn.SequentialCell:
    mindspore.set_seed(0)
    return nn.SequentialCell(
        nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 16), nn.LayerNorm((16,)), nn.Dense(16, 4)
    )


X = np.linspace(-1.0, 1.0, 32, dtype=np.float32).reshape(4, 8)


def test_a_layer_is_named() -> None:
    net = network()
    net[3].gamma.set_data(Tensor(np.full(16, 1e-6, np.float32)))
    x = Tensor(X)
    differentiated.a_layer_is_named(
        lambda: mindspore.grad(lambda x: net(x).sum(), None, net.trainable_params())(x),
        "SequentialCell.2",
    )


def test_parameters_have_theirs() -> None:
    net = network()
    names = [
        f"SequentialCell.{name}" for name, each in net.parameters_and_names() if each.requires_grad
    ]

    def run():
        gradients = mindspore.grad(
            lambda x: net(x).sum() + net(x * 2.0).square().sum(), None, net.trainable_params()
        )(Tensor(X))
        return {name: each.asnumpy() for name, each in zip(names, gradients, strict=True)}

    differentiated.parameters_have_theirs(run)


def test_a_loss_scale_is_told() -> None:
    x = Tensor(X)
    differentiated.a_loss_scale_is_told(
        lambda scaler: mindspore.grad(lambda x: scaler.scale(ops.exp(x).sum()))(x)
    )


class Net(nn.Cell):
    """Layers with state, with random numbers, and with several results."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Dense(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(p=0.5)
        self.lstm = nn.LSTM(8, 4, batch_first=True)

    def construct(self, x):
        h = ops.relu(self.drop(self.norm(self.first(x))) * 0.5)
        out, _ = self.lstm(h.unsqueeze(0))
        return ops.log_softmax(out, -1).mean() + ops.square(x).sum()


@pytest.mark.parametrize("region", [{"enabled": False}, {"dtype": "bfloat16"}])
def test_a_trace_changes_nothing(region) -> None:
    def run(trace):
        mindspore.set_seed(3)
        net = Net().set_train()
        with trace, unamp.autocast(**region):
            value, grads = mindspore.value_and_grad(net, 0, net.trainable_params())(Tensor(X))
        results = [value, grads[0], *grads[1], net.norm.moving_mean]
        return [each.astype(mindspore.float32).asnumpy() for each in results]

    differentiated.gradients_do_not_depend_on_a_trace(run)


def test_a_backward_pass_is_not_reported() -> None:
    """The statistics of a gradient are not reported either, and follow no rule."""
    net = network()
    with unamp.trace(gradients=True) as trace, unamp.autocast(dtype="bfloat16", level="O3"):
        mindspore.grad(lambda x: net(x).sum(), None, net.trainable_params())(Tensor(X))
    assert " ".join(record.op for record in trace.records) == (
        "linear relu linear layer_norm linear sum"
    )
    assert len([each for each in trace.gradients if each.record is not None]) == 6


def test_no_network_is_kept() -> None:
    def made():
        net = network()
        mindspore.grad(lambda x: net(x).sum(), None, net.trainable_params())(Tensor(X))
        yield net

    differentiated.no_graph_is_kept(made)


def test_what_is_not_differentiated_has_none() -> None:
    with unamp.trace(gradients=True) as trace:
        network()(Tensor(X))
    assert trace.records
    assert trace.gradients == []
    assert "no gradient of a result was seen" in trace.table()
