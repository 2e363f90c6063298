"""`unamp.trace(shadow=...)` records the shadows of Paddle's operations."""

from __future__ import annotations

import numpy as np
import paddle
import shadowed
from paddle import nn
from shadowed import *  # noqa: F403
from stateful import Net

import unamp


def test_a_shadow_changes_nothing():
    def run(trace):
        paddle.seed(3)
        net, x = Net(), paddle.randn([6, 8])
        x.stop_gradient = False
        with trace:
            loss = net(x)
        loss.backward()
        grads = [x.grad, *(p.grad for p in net.parameters() if p.grad is not None)]
        return [t.numpy() for t in (loss, *grads, *net.buffers(), paddle.rand([4]))]

    trace = shadowed.a_shadow_changes_nothing(run, "float8_e4m3")
    left_out = {
        record.op: record.shadow.left_out for record in trace.records if record.shadow.left_out
    }
    assert left_out.pop("scale", "it changes what it is given") == "it changes what it is given"
    assert left_out == dict.fromkeys(("rrelu", "lstm"), "it draws random numbers")
    assert "multi_head_attention" not in {r.op for r in trace.records}, trace.records
    assert {"linear", "batch_norm", "gru", "log_softmax"} <= {
        line.op for line in trace.shadow_summary() if not line.left_out
    }


def test_faults_lead():
    large, one = (
        paddle.ParamAttr(initializer=nn.initializer.Constant(value)) for value in (2e3, 1.0)
    )
    net = nn.Sequential(
        nn.Linear(8, 8, weight_attr=one), nn.ReLU(), nn.Linear(8, 4, weight_attr=large)
    )
    shadowed.faults_lead(paddle.to_tensor, paddle.exp, paddle.sum, net, "Sequential.2")


def test_what_is_changed_in_place_is_left_out():
    x = paddle.ones([4])
    with unamp.trace(shadow="float16") as trace:
        x.exp_()
        x.add_(paddle.ones([4]))
    np.testing.assert_array_equal(x.numpy(), (paddle.exp(paddle.ones([4])) + 1).numpy())
    assert {record.shadow.left_out for record in trace.records} == {"it changes what it is given"}
