"""`trace` and `explain` on Paddle."""

import paddle

import unamp
from unamp import Policy, Rule
from unamp.adapter import How, Support, adapter_for


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
