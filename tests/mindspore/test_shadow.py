"""`unamp.trace(shadow=...)` records the shadows of operations of PyNative mode."""

from __future__ import annotations

import mindspore
import numpy as np
import shadowed
from mindspore import Parameter, Tensor, nn, ops
from shadowed import *  # noqa: F403

import unamp


class Net(nn.Cell):
    """Layers with state, with random numbers, and with a parameter that is changed in place."""

    def __init__(self):
        super().__init__()
        self.first = nn.Dense(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(p=0.5)
        self.lstm = nn.LSTM(8, 4, num_layers=2, dropout=0.5)
        self.gru = nn.GRU(4, 4)
        self.table = Parameter(
            Tensor(np.ones((4, 2), np.float32)), name="table", requires_grad=False
        )

    def construct(self, x):
        h = self.drop(self.norm(self.first(x)))
        out, _ = self.lstm(h[None])
        out, _ = self.gru(out)
        return ops.log_softmax(out, -1).mean() + (ops.exp(h) * x).sum()


def test_a_shadow_changes_nothing():
    def run(trace):
        mindspore.set_seed(3)
        generator = np.random.default_rng(3)
        net = Net().set_train()
        for parameter in net.trainable_params():
            parameter.set_data(Tensor(generator.normal(size=parameter.shape).astype(np.float32)))
        x = Tensor(generator.normal(size=(6, 8)).astype(np.float32))
        step = mindspore.value_and_grad(net, 0, net.trainable_params())
        with trace:
            loss, (dx, grads) = step(x)
            ops.scatter_add(
                net.table, Tensor([1], mindspore.int32), Tensor(np.ones((1, 2), np.float32))
            )
        after = [parameter for parameter in net.get_parameters() if not parameter.requires_grad]
        return [t.asnumpy() for t in (loss, dx, *grads, *after, ops.rand(4))]

    trace = shadowed.a_shadow_changes_nothing(run, "float8_e4m3")
    left_out = {
        record.op: record.shadow.left_out for record in trace.records if record.shadow.left_out
    }
    state = "it changes the state of its layer (running statistics, a seed)"
    assert left_out == {"lstm": "it draws random numbers", "batch_norm": state}, (
        trace.shadow_table()
    )
    assert {"linear", "gru", "log_softmax"} <= {
        line.op for line in trace.shadow_summary() if not line.left_out
    }


def test_faults_lead():
    first, last = (nn.Dense(8, n, weight_init="ones", has_bias=False) for n in (8, 4))
    net = nn.SequentialCell(first, nn.ReLU(), last)
    last.weight.set_data(last.weight * 2e3)
    shadowed.faults_lead(Tensor, ops.exp, ops.sum, net, "SequentialCell.2")


def test_what_is_changed_in_place_is_left_out():
    x = ops.ones((4,))
    with unamp.trace(shadow="float16") as trace:
        changed = x.add_(x)  # on the CPU MindSpore itself does not change `x`
    np.testing.assert_array_equal(changed.asnumpy(), np.full(4, 2.0))
    assert {record.shadow.left_out for record in trace.records} == {"it changes what it is given"}
