"""`unamp.trace(gradients=True)` records the gradients of Paddle's operations."""

from __future__ import annotations

import differentiated
import numpy as np
import paddle
import pytest
from differentiated import *  # noqa: F403
from paddle import nn
from stateful import Net

import unamp


def network() -> nn.Sequential:
    paddle.seed(0)
    return nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 4)
    )


def rows():
    return paddle.rand([4, 8])


def test_a_layer_is_named() -> None:
    net = network()
    net[3].weight.set_value(np.full(16, 1e-6, np.float32))
    differentiated.a_layer_is_named(
        lambda: net(paddle.rand([4, 8])).sum().backward(), "Sequential.2"
    )


def test_parameters_have_theirs() -> None:
    net = network()

    def run():
        net.clear_gradients()
        (
            net(paddle.ones([4, 8])).sum()
            + net(paddle.linspace(-1.0, 1.0, 32).reshape([4, 8])).square().sum()
        ).backward()
        return {f"Sequential.{name}": each.grad.numpy() for name, each in net.named_parameters()}

    differentiated.parameters_have_theirs(run)


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
        return [
            t.astype("float32").numpy()
            for t in (loss, *grads, *net.norm.buffers(), paddle.rand([4]))
        ]

    differentiated.gradients_do_not_depend_on_a_trace(run)


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
