"""Of unamp's regions and `paddle.amp.auto_cast`, the one opened last is in force."""

import numpy as np
import paddle
import pytest
from paddle.base import core
from paddle.base.framework import _dygraph_tracer
from paddle.distributed.fleet.utils import recompute
from paddle.nn import functional as F
from unamp_paddle.state import thread

import unamp
from unamp import Policy, policy_region

FLOAT16, BFLOAT16, FLOAT32 = paddle.float16, paddle.bfloat16, paddle.float32


@pytest.fixture(params=["eager", "AST", "SOT"])
def run(request):
    """Return a function that runs another one as it is, or compiled."""
    if request.param == "eager":
        return lambda function: function
    return lambda function: paddle.jit.to_static(function, full_graph=request.param == "AST")


@paddle.amp.auto_cast(False)
def decorated_off(x):
    return x @ x


def off(x):
    before = x @ x
    with paddle.amp.auto_cast(False):
        inside = x @ x, F.softmax(before)
    with paddle.amp.amp_guard(enable=False, dtype="float32"):
        older = x @ x
    with paddle.amp.autocast("cpu", enabled=False):
        torchlike = x @ x
    return before, *inside, older, torchlike, x @ x


def lists(x):
    with paddle.amp.auto_cast(
        custom_black_list=["matmul_v2"], custom_white_list={"elementwise_add"}, dtype="bfloat16"
    ):
        return x @ x, x + x


def levels(x):
    with paddle.amp.auto_cast(level="o2", dtype="bfloat16", use_promote=False):
        two = F.softmax(x)
        with paddle.amp.auto_cast(level="O0"):
            zero = x @ x
        with unamp.autocast(dtype="float16"):
            ours = x @ x
    return two, zero, ours


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (off, [FLOAT16, FLOAT32, FLOAT16, FLOAT32, FLOAT32, FLOAT16]),
        (lists, [FLOAT32, BFLOAT16]),
        (levels, [BFLOAT16, FLOAT32, FLOAT16]),
    ],
)
def test_inside_a_region(run, function, expected):
    x = paddle.rand([4, 4])
    compiled = run(function)
    for _ in range(2):
        with unamp.autocast(dtype="float16"):
            assert [tensor.dtype for tensor in compiled(x)] == expected


def test_one_that_decorated_a_function_before():
    x = paddle.rand([4, 4])
    assert decorated_off(x).dtype == FLOAT32
    with unamp.autocast(dtype="float16"):
        assert decorated_off(x).dtype == FLOAT32
        assert (x @ x).dtype == FLOAT16


def test_an_error_closes_it():
    with unamp.autocast(dtype="float16"):
        with pytest.raises(KeyError), paddle.amp.auto_cast(False):
            raise KeyError
        assert (paddle.rand([4, 4]) @ paddle.rand([4, 4])).dtype == FLOAT16


def test_what_it_cannot_mean_raises():
    with unamp.autocast(dtype="float16"):
        with (
            pytest.raises(ValueError, match="no_such_kernel"),
            paddle.amp.auto_cast(custom_white_list=["no_such_kernel"]),
        ):
            pass
        with pytest.raises(ValueError, match="O7"), paddle.amp.auto_cast(level="O7"):
            pass


class RMSNorm(paddle.nn.Layer):
    """A norm as in paddlenlp; its squares would vanish in float16."""

    def __init__(self):
        super().__init__()
        self.weight = self.create_parameter(
            [8], default_initializer=paddle.nn.initializer.Constant(1.0)
        )

    def forward(self, x):
        with paddle.amp.auto_cast(False):
            x = x.astype("float32")
            x = paddle.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-12) * x
        return x * self.weight


def test_a_norm_that_switches_it_off(run):
    x = paddle.full([2, 8], 1e-4)
    with policy_region(Policy("O2", "float16")):
        found = run(RMSNorm())(x)
    np.testing.assert_allclose(found.astype("float32").numpy(), np.ones([2, 8]), rtol=1e-3)


def around(x):
    with paddle.amp.auto_cast(level="O2", dtype="float16"):
        with unamp.autocast(enabled=False):
            disabled = x @ x
        with unamp.autocast(dtype="float16", deny="matmul"):
            denied = x @ x
    return disabled, denied


def test_around_a_region(run):
    x = paddle.rand([4, 4])
    assert [tensor.dtype for tensor in run(around)(x)] == [FLOAT32, FLOAT32]


@pytest.mark.parametrize("policy", [Policy(), Policy(enabled=False), Policy("O2", preset="paddle")])
def test_a_region_switches_paddles_own_off(policy):
    tracer = _dygraph_tracer()
    before, tracer._amp_level = tracer._amp_level, core.AmpLevel.O1
    try:
        with policy_region(policy):
            assert tracer._amp_level == core.AmpLevel.O0
        assert tracer._amp_level == core.AmpLevel.O1
    finally:
        tracer._amp_level = before


def test_model_that_was_not_told_of_amp_leaves_regions_alone():
    network, seen = paddle.nn.Linear(4, 4), []
    network.register_forward_post_hook(lambda layer, given, result: seen.append(result.dtype))
    model = paddle.Model(network)
    model.prepare(paddle.optimizer.SGD(0.1, network.parameters()), paddle.nn.MSELoss())
    with unamp.autocast(dtype="bfloat16"):
        model.train_batch([paddle.rand([2, 4])], [paddle.rand([2, 4])])
    assert seen == [BFLOAT16]


def test_recomputation_repeats_what_it_says():
    x = paddle.rand([4, 4])
    x.stop_gradient = False
    seen = []

    def block(x):
        with paddle.amp.auto_cast(False):
            first = x @ x
        second = first @ x
        seen.append((first.dtype, second.dtype))
        return second

    with unamp.autocast(dtype="float16"):
        recompute(block, x).sum().backward()
    assert seen == [(FLOAT32, FLOAT16)] * 2
    assert x.grad.dtype == FLOAT32


def answers(x):
    return paddle.is_autocast_enabled(), paddle.get_autocast_dtype()


def test_paddle_tells_of_regions(run):
    x, ask = paddle.rand([4]), run(answers)
    assert ask(x) == (False, "float16")
    with unamp.autocast(dtype="bfloat16"):
        assert ask(x) == (True, "bfloat16")
        with paddle.amp.auto_cast(False):
            assert ask(x) == (False, "float16")
        with paddle.amp.auto_cast(dtype="float16"):
            assert ask(x) == (True, "float16")
        with unamp.autocast(enabled=False):
            assert not paddle.amp.is_autocast_enabled()
    assert thread.plan is None
    assert ask(x) == (False, "float16")


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_a_model_logs_and_returns_numbers(level, low):
    """NumPy has no bfloat16: Paddle returns its bits in an array of integers."""
    x, y = np.linspace(0, 1, 12, dtype="float32").reshape(3, 4), np.ones([3, 1], "float32")
    found = []
    for policy in (Policy("O0"), Policy(level, low)):
        paddle.seed(3)
        network = paddle.nn.Linear(4, 1)
        model, logged = paddle.Model(network), []

        class Log(paddle.callbacks.Callback):
            def on_train_batch_end(self, step, logs=None, logged=logged):
                logged += logs["loss"]

        optimizer = paddle.optimizer.SGD(0.01, parameters=network.parameters())
        model.prepare(optimizer, paddle.nn.MSELoss(), paddle.metric.Precision())
        data = paddle.io.TensorDataset([paddle.to_tensor(x), paddle.to_tensor(y)])
        with policy_region(policy):
            model.fit(data, batch_size=3, epochs=2, verbose=0, callbacks=[Log()])
            evaluated = model.evaluate(data, batch_size=3, verbose=0)
            (predicted,) = model.predict_batch([x])
        found.append(
            np.concatenate([logged, evaluated["loss"], [evaluated["precision"]], predicted.ravel()])
        )
    exact, rounded = found
    # Losses and predictions are at most 1, and their parts are rounded eight times at most.
    assert np.abs(rounded - exact).max() < 8 * {"float16": 2**-11, "bfloat16": 2**-8}[low]
