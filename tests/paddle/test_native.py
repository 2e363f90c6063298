"""Policies that Paddle's own AMP carries out on a GPU are chosen right, without a GPU."""

import paddle
import pytest
from paddle.base import core
from paddle.base.framework import _dygraph_tracer
from unamp_paddle import activation, native
from unamp_paddle.activation import Activation
from unamp_paddle.plans import Plan, followed_natively, plan
from unamp_paddle.state import thread

import unamp
from unamp import Policy
from unamp.adapter import How

PADDLE = Policy(preset="paddle")


@pytest.mark.parametrize(
    ("policy", "device", "expected"),
    [
        (PADDLE, None, True),
        (PADDLE, "gpu", True),
        (PADDLE, "cpu", False),
        (Policy("O2", "bfloat16", preset="paddle"), "gpu", True),
        (Policy("O2", preset="paddle", promote=True), "gpu", True),
        (Policy("OD", preset="paddle"), "gpu", True),
        (Policy("O3", preset="paddle"), "gpu", False),
        (Policy(preset="paddle", allow="exp"), "gpu", False),
        (Policy(preset="paddle", deny="conv2d"), "gpu", False),
        (Policy(preset="paddle", widen_results=True), "gpu", False),
        (Policy(preset="unamp"), "gpu", False),
        (Policy(preset="torch-cuda"), "gpu", False),
    ],
)
def test_which_policies_are_left_to_paddle(policy, device, expected):
    assert followed_natively(policy, device, gpu=True) is expected
    assert followed_natively(policy, device, gpu=False) is False


def test_explain_says_what_is_left_to_paddle():
    told = unamp.explain(PADDLE, "paddle", "gpu")
    assert told["bmm"].how["paddle", "gpu"] is How.NATIVE
    assert told["conv2d"].how["paddle", "gpu"] is How.INTERCEPTED  # the operation includes its bias
    assert unamp.explain(PADDLE, "paddle", "cpu")["bmm"].how["paddle", "cpu"] is How.INTERCEPTED


def test_nothing_is_left_to_paddle_on_a_build_for_cpus():
    assert plan(PADDLE, None).natively is core.is_compiled_with_cuda()
    assert not plan(PADDLE, "cpu").natively
    assert plan(Policy(preset="native"), "cpu") is None


@pytest.fixture
def beside():
    return Plan(PADDLE, PADDLE.rules, natively=True)


def levels(x):
    """Return Paddle's own level outside of a convolution."""
    seen = []
    layer = paddle.nn.Conv2D(2, 2, 1)
    layer.register_forward_post_hook(lambda *_: seen.append(_dygraph_tracer()._amp_level))
    layer(x)
    return seen


def test_paddles_own_region_is_opened_beside_and_closed(beside, monkeypatch):
    monkeypatch.setattr(activation, "expects_gpu", lambda: True)
    x = paddle.rand([1, 2, 4, 4])
    before = _dygraph_tracer()._amp_level
    opened = []

    class Region:
        def __enter__(self):
            _dygraph_tracer()._amp_level, _dygraph_tracer()._amp_dtype = core.AmpLevel.O1, "float16"
            opened.append(True)

        def __exit__(self, *_):
            _dygraph_tracer()._amp_level, _dygraph_tracer()._amp_dtype = before, "float32"
            opened.append(False)

    monkeypatch.setattr(paddle.amp, "auto_cast", lambda *_, **__: Region())
    realisation = Activation(beside)
    token = realisation.enter()
    assert levels(x) == [core.AmpLevel.O1]
    assert thread.plan is beside
    # one operation, bias included
    assert paddle.nn.Conv2D(2, 2, 1)(x).dtype == paddle.float16
    realisation.exit(token)
    assert opened == [True, False]
    assert _dygraph_tracer()._amp_level == before


def test_it_does_not_reach_into_what_is_one_operation(beside):
    seen = []
    tracer = _dygraph_tracer()
    before, tracer._amp_level = tracer._amp_level, core.AmpLevel.O1
    try:
        with native.without_paddles_own():
            seen.append(tracer._amp_level)
        seen.append(tracer._amp_level)
    finally:
        tracer._amp_level = before
    assert seen == [core.AmpLevel.O0, core.AmpLevel.O1]


def test_without_a_gpu_everything_is_intercepted(beside):
    realisation = Activation(beside)
    token = realisation.enter()
    try:
        assert not thread.plan.natively
        assert (paddle.rand([4, 4]) @ paddle.rand([4, 4])).dtype == paddle.float16
    finally:
        realisation.exit(token)
