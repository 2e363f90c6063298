"""`trace` and `explain` report MindSpore's operations as they ran."""

import mindspore
import numpy as np
import pytest
import traced
from mindspore import Tensor, nn, ops
from traced import *  # noqa: F403

import unamp
from unamp import Policy, Rule
from unamp.adapter import How, Support
from unamp.adapter.registry import adapter_for


def test_records_say_what_ran():
    dense, x = nn.Dense(4, 4), Tensor(np.random.rand(2, 4).astype(np.float32))
    with unamp.trace() as trace:
        dense(x)
        with unamp.autocast(dtype="float16"):
            h = dense(x)
            ops.softmax(h)
            h.reshape((8,))
    assert [(r.op, r.native, r.rule, r.compute, r.output, r.emulated) for r in trace.records] == [
        ("linear", "Dense.construct", Rule.UNTOUCHED, "float32", "float32", False),
        ("linear", "Dense.construct", Rule.LOW, "float16", "float16", True),
        ("softmax", "ops.softmax", Rule.FP32, "float32", "float32", False),
    ]


def test_explain():
    told = unamp.explain(Policy(), "mindspore", "cpu")
    assert told["matmul"].how["mindspore", "cpu"] is How.EMULATED
    assert told["softmax"].how["mindspore", "cpu"] is How.INTERCEPTED
    assert told["reshape"].how["mindspore", "cpu"] is How.NATIVE
    assert unamp.explain(Policy(preset="native"), "mindspore", "cpu")["matmul"].rule is Rule.LOW


def test_the_adapter_says_what_it_can_do():
    adapter = adapter_for("mindspore")
    assert adapter.devices()[0] == "cpu"
    assert adapter.support("cpu", "bfloat16") is Support.EMULATED
    assert all(gap.reason for gap in adapter.gaps())
    assert adapter.version() == mindspore.__version__


# --- layers, casts, values ------------------------------------------------------------------------


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.LayerNorm((8,)))
        self.rnn = nn.LSTM(8, 8)
        self.head = nn.Dense(8, 2)

    def construct(self, x):
        return ops.softmax(self.head(self.rnn(self.body(x)[None])[0]), -1)


PLACES = [
    ("linear", "Net.body.0"), ("relu", "Net.body.1"), ("layer_norm", "Net.body.2"),
    ("lstm", "Net.rnn"), ("linear", "Net.head"), ("softmax", "Net"),
]  # fmt: skip


def rand(*shape):
    return Tensor(np.random.default_rng(0).random(shape, np.float32))


def made():
    return Net(), rand(3, 8)


def test_a_layer_that_raises_is_left_and_the_hook_is_undone():
    net, own = Net(), nn.Cell.__call__.__code__
    with unamp.trace() as trace:
        assert nn.Cell.__call__.__code__ is not own
        with pytest.raises(ValueError, match=r"."):
            net(rand(3, 7))
        ops.exp(rand(3))
    assert nn.Cell.__call__.__code__ is own
    assert trace.records[-1].layer is None


def test_casts_are_counted_with_what_they_move():
    dense, given = nn.Dense(8, 4), rand(3, 8)
    low = given.astype(mindspore.bfloat16)

    def forward(x):
        dense(x)
        return dense(low).astype(mindspore.float32).sum()

    with unamp.trace() as trace, unamp.autocast(dtype="bfloat16"):
        mindspore.grad(forward)(given)
    dense_runs = [(r.casts, r.cast_bytes) for r in trace.records if r.op == "linear"]
    # MindSpore keeps no cast of a parameter
    assert dense_runs == [(3, 6 * (24 + 32 + 4)), (2, 6 * (32 + 4))]
    with unamp.trace() as trace:
        dense(given)
        with unamp.autocast(dtype="bfloat16"):
            low + given
            ops.softmax(low)
        with unamp.policy_region(Policy("O1", "bfloat16", widen_results=True)):
            dense(given)
    assert [(r.op, r.casts, r.cast_bytes) for r in trace.records] == [
        ("linear", 0, 0), ("add", 1, 6 * 24), ("softmax", 1, 6 * 24),
        ("linear", 4, 6 * (24 + 32 + 4 + 12)),
    ]  # fmt: skip


def test_values_and_gradients_do_not_depend_on_being_traced():
    net, given = Net(), rand(3, 8)

    def run(trace):
        def forward(x):
            with trace:
                return net(x).astype(mindspore.float32).sum()

        with unamp.autocast(dtype="bfloat16"):
            of_input, of_parameters = mindspore.grad(forward, 0, net.trainable_params())(given)
        return [each.asnumpy() for each in (of_input, *of_parameters)]

    traced.results_do_not_depend_on_a_trace(run)


def product(x):
    return ops.matmul(x, x)


def test_a_graph_that_runs_in_a_trace_is_warned_of(monkeypatch):
    function, x = mindspore.jit(product), rand(2, 2)
    traced.a_graph_is_warned_of(
        lambda: function(x), r"a graph of mindspore\.jit ran in a trace", monkeypatch
    )


# --- work -----------------------------------------------------------------------------------------


def test_the_work_of_operations_is_counted():
    traced.work_is_counted(
        {
            "linear": (lambda: nn.Dense(5, 6)(rand(3, 7, 5)), 3 * 7 * 5 * 6),
            "matmul": (lambda: ops.matmul(rand(2, 3, 4, 5), rand(3, 5, 6)), 2 * 3 * 4 * 5 * 6),
            "bmm": (lambda: ops.bmm(rand(3, 4, 5), rand(3, 5, 6)), 3 * 4 * 5 * 6),
            "conv1d": (
                lambda: nn.Conv1d(4, 6, 3, pad_mode="valid")(rand(2, 4, 9)),
                2 * 6 * 7 * 4 * 3,
            ),
            "conv2d": (
                lambda: ops.conv2d(rand(2, 4, 9, 9), rand(6, 2, 3, 3), groups=2, stride=2),
                2 * 6 * 4 * 4 * 2 * 9,
            ),
            "conv_transpose2d": (
                lambda: nn.Conv2dTranspose(4, 6, 3, pad_mode="valid")(rand(2, 4, 9, 9)),
                2 * 4 * 81 * 6 * 9,
            ),
            "lstm": (lambda: nn.LSTM(5, 6)(rand(3, 4, 5)), 12 * 4 * 6 * 11),
            "gru_cell": (lambda: nn.GRUCell(5, 6)(rand(3, 5), rand(3, 6)), 3 * 3 * 6 * 11),
            "layer_norm": (lambda: nn.LayerNorm((7,))(rand(3, 7)), 0),
        }
    )
