"""`unamp.trace(gradients=True)` on Paddle's operations."""

from __future__ import annotations

import differentiated
import numpy as np
import paddle
import pytest
from differentiated import test_every_framework_promises  # noqa: F401
from paddle import nn

import unamp


def network() -> nn.Sequential:
    paddle.seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 4))


def test_a_layer_is_named() -> None:
    net = network()
    net[3].weight.set_value(np.full(16, 1e-6, np.float32))
    differentiated.a_layer_is_named(lambda: net(paddle.rand([4, 8])).sum().backward(), "Sequential.2")


def test_parameters_have_theirs() -> None:
    net = network()

    def run():
        net.clear_gradients()
        (net(paddle.ones([4, 8])).sum() + net(paddle.linspace(-1.0, 1.0, 32).reshape([4, 8])).square().sum()).backward()
        return {f"Sequential.{name}": each.grad.numpy() for name, each in net.named_parameters()}

    differentiated.parameters_have_theirs(run)


def test_a_loss_scale_is_told() -> None:
    differentiated.a_loss_scale_is_told(lambda scaler: scaler.scale(network()(paddle.rand([4, 8])).sum()).backward())


class Net(nn.Layer):
    """Layers with state, with random numbers, with several results, and with others in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1D(8)
        self.drop = nn.Dropout(0.5)
        self.lstm = nn.LSTM(8, 4)

    def forward(self, x):
        h = self.drop(self.norm(self.first(x)))
        h = nn.functional.relu_(h * 0.5)
        out, _ = self.lstm(h.unsqueeze(0))
        return nn.functional.log_softmax(out, -1).mean() + x.square().sum()


@pytest.mark.parametrize("region", [{"enabled": False}, {"dtype": "bfloat16"}])
def test_a_trace_changes_nothing(region) -> None:
    def run(trace):
        paddle.seed(3)
        net, x = Net(), paddle.randn([6, 8])
        x.stop_gradient = False
        with trace:
            with unamp.autocast(**region):
                loss = net(x)
            loss.backward()
        grads = [x.grad, *(p.grad for p in net.parameters() if p.grad is not None)]
        return [t.astype("float32").numpy() for t in (loss, *grads, *net.norm.buffers(), paddle.rand([4]))]

    differentiated.gradients_do_not_depend_on_a_trace(run)


def test_a_backward_pass_inside_of_a_region_is_not_reported() -> None:
    """Nor is looking at a gradient, which follows no rule."""
    with unamp.trace(gradients=True) as trace, unamp.autocast(dtype="bfloat16", level="O3"):
        network()(paddle.rand([4, 8])).sum().backward()
    assert [record.op for record in trace.records] == ["linear", "relu", "linear", "layer_norm", "linear", "sum"]
    assert len([each for each in trace.gradients if each.record is not None]) == 6


def test_a_later_backward_pass_is_not_recorded() -> None:
    differentiated.a_later_backward_pass_is_not_recorded(lambda: network()(paddle.rand([4, 8])).sum().backward)


def test_no_graph_is_kept() -> None:
    def made():
        for backward in (True, False):
            net = network()
            loss = net(paddle.rand([4, 8])).sum()
            if backward:
                loss.backward()
            yield from (net, loss)

    differentiated.no_graph_is_kept(made)


def test_what_needs_no_gradient_has_none() -> None:
    x = paddle.rand([3])
    x.stop_gradient = False
    with unamp.trace(gradients=True) as trace:
        with paddle.no_grad():
            network()(paddle.rand([4, 8]))
        x.exp().sum().backward()
    assert [trace.records[each.record].op for each in trace.gradients] == ["sum", "exp"]


def test_another_function_of_gradients_is_seen_too() -> None:
    x = paddle.to_tensor([2.0], stop_gradient=False)
    with unamp.trace(gradients=True) as trace:
        (first,) = paddle.grad((x * x * x).sum(), x, create_graph=True)
        first.sum().backward()
    assert x.grad.item() == 12.0
    assert len(trace.gradients) > 2
