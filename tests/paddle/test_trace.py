"""`trace` and `explain` report Paddle's operations as they ran."""

import paddle
import paddle.nn.functional as F
import pytest
import traced
from paddle import nn
from traced import *  # noqa: F403

import unamp
from unamp import Policy, Rule
from unamp.adapter import How, Support
from unamp.adapter.registry import adapter_for


def test_records_say_what_ran():
    linear, x = paddle.nn.Linear(4, 4), paddle.rand([2, 4])
    with unamp.trace() as trace:
        linear(x)
        with unamp.autocast(dtype="float16"):
            h = linear(x)
            paddle.nn.functional.softmax(h)
            h.reshape([8])
    assert [(r.op, r.rule, r.compute, r.output, r.emulated) for r in trace.records] == [
        ("linear", Rule.UNTOUCHED, "float32", "float32", False),
        ("linear", Rule.LOW, "float16", "float16", True),
        ("softmax", Rule.FP32, "float32", "float32", False),
    ]


def test_explain():
    told = unamp.explain(Policy(), "paddle", "cpu")
    assert told["matmul"].how["paddle", "cpu"] is How.EMULATED
    assert told["softmax"].how["paddle", "cpu"] is How.INTERCEPTED
    assert told["reshape"].how["paddle", "cpu"] is How.NATIVE
    assert unamp.explain(Policy(preset="native"), "paddle", "cpu")["matmul"].rule is Rule.UNTOUCHED
    assert unamp.explain(Policy(preset="native"), "paddle", "gpu")["matmul"].rule is Rule.LOW


def test_the_adapter_says_what_it_can_do():
    adapter = adapter_for("paddle")
    assert adapter.devices()[0] == "cpu"
    assert adapter.support("cpu", "float16") is Support.EMULATED
    assert all(gap.reason for gap in adapter.gaps())


# --- layers, casts, values ------------------------------------------------------------------------


class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8))
        self.rnn = nn.LSTM(8, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return nn.functional.softmax(self.head(self.rnn(self.body(x)[None])[0]), -1)


def made():
    return Net(), paddle.rand([3, 8])


PLACES = [
    ("linear", "Net.body.0"), ("relu", "Net.body.1"), ("layer_norm", "Net.body.2"),
    ("lstm", "Net.rnn"), ("linear", "Net.head"), ("softmax", "Net"),
]  # fmt: skip


def test_a_layer_that_raises_is_left_and_the_hook_is_undone():
    net, own = Net(), nn.Layer.__call__.__code__
    with unamp.trace() as trace:
        assert nn.Layer.__call__.__code__ is not own
        with pytest.raises(ValueError, match="dim"):
            net(paddle.rand([3, 7]))
        paddle.rand([3]).exp()
    assert nn.Layer.__call__.__code__ is own
    assert trace.records[-1].layer is None


def test_casts_are_counted_with_what_they_move():
    linear, given = nn.Linear(8, 4), paddle.rand([3, 8])
    with unamp.trace() as trace:
        linear(given)
        with unamp.autocast(dtype="bfloat16"):
            linear(given)
            linear(given.astype("bfloat16"))
            given.astype("bfloat16") + given
            nn.functional.softmax(given.astype("bfloat16"))
    assert [(r.op, r.casts, r.cast_bytes) for r in trace.records] == [
        ("linear", 0, 0), ("linear", 3, 6 * (24 + 32 + 4)), ("linear", 2, 6 * (32 + 4)),
        ("add", 1, 6 * 24), ("softmax", 1, 6 * 24),
    ]  # fmt: skip
    with unamp.trace() as trace, unamp.policy_region(Policy("O1", "bfloat16", widen_results=True)):
        linear(given)
    (widened,) = trace.records
    assert (widened.output, widened.casts, widened.cast_bytes) == (
        "float32",
        4,
        6 * (24 + 32 + 4 + 12),
    )


def test_values_and_gradients_do_not_depend_on_being_traced():
    net, given = Net(), paddle.rand([3, 8])

    def run(trace):
        with unamp.autocast(dtype="bfloat16"), trace:
            out = net(given).astype("float32")
        out.square().sum().backward()
        gradients = [p.grad.numpy() for p in net.parameters() if p.grad is not None]
        net.clear_gradients()
        return [out.numpy(), *gradients]

    traced.results_do_not_depend_on_a_trace(run)


def test_a_graph_that_runs_in_a_trace_is_warned_of(monkeypatch):
    def product(x):
        return x @ x

    function, x = paddle.jit.to_static(product, full_graph=True), paddle.ones([2, 2])
    said = r"a graph of paddle\.jit\.to_static\(full_graph=True\) ran in a trace"
    traced.a_graph_is_warned_of(lambda: function(x), said, monkeypatch)


# --- work -----------------------------------------------------------------------------------------


def test_the_work_of_operations_is_counted():
    def r(*shape):
        return paddle.rand(list(shape))

    image, attended = r(2, 4, 9, 9), (r(2, 4, 3, 5), r(2, 6, 3, 5), r(2, 6, 3, 5))
    traced.work_is_counted(
        {
            "linear": (lambda: F.linear(r(3, 7, 5), r(5, 6), r(6)), 3 * 7 * 5 * 6),
            "matmul": (
                lambda: paddle.matmul(r(2, 3, 4, 5), r(3, 6, 5), transpose_y=True),
                2 * 3 * 4 * 5 * 6,
            ),
            "bmm": (lambda: paddle.bmm(r(3, 4, 5), r(3, 5, 6)), 3 * 4 * 5 * 6),
            "addmm": (lambda: paddle.addmm(r(4, 6), r(4, 5), r(5, 6)), 4 * 5 * 6),
            "einsum": (
                lambda: paddle.einsum("bij,bjk->bik", r(3, 4, 5), r(3, 5, 6)),
                3 * 4 * 5 * 6,
            ),
            "conv1d": (lambda: nn.Conv1D(4, 6, 3)(r(2, 4, 9)), 2 * 6 * 7 * 4 * 3),
            "conv2d": (
                lambda: F.conv2d(image, r(6, 2, 3, 3), groups=2, stride=2),
                2 * 6 * 4 * 4 * 2 * 9,
            ),
            "conv3d": (lambda: F.conv3d(r(2, 4, 5, 5, 5), r(6, 4, 3, 3, 3)), 2 * 6 * 27 * 4 * 27),
            "conv_transpose2d": (
                lambda: F.conv2d_transpose(image, r(4, 3, 3, 3), groups=2),
                2 * 4 * 81 * 3 * 9,
            ),
            "scaled_dot_product_attention": (
                lambda: F.scaled_dot_product_attention(*attended),
                2 * 3 * 4 * 6 * 10,
            ),
            "lstm": (lambda: nn.LSTM(5, 6)(r(3, 4, 5)), 12 * 4 * 6 * 11),
            "gru": (lambda: nn.GRU(5, 6)(r(3, 4, 5)), 12 * 3 * 6 * 11),
            "lstm_cell": (lambda: nn.LSTMCell(5, 6)(r(3, 5)), 3 * 4 * 6 * 11),
            "layer_norm": (lambda: F.layer_norm(r(3, 7), 7), 0),
        }
    )
