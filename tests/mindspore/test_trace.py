"""`trace` and `explain` on MindSpore."""

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops

import unamp
from unamp import Policy, Rule
from unamp.adapter import How, Support, adapter_for


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
