"""The commonest calls take fewer steps, to the same results; all others go the whole way."""

import numpy as np
import paddle
import pytest
import unamp_paddle.calls
from followed import changes_of_file
from unamp_paddle import plans

from unamp import Policy, policy_region

F = paddle.nn.functional
LEVELS = ["OD", "O1", "O2", "O3"]


@pytest.fixture
def the_whole_way(monkeypatch):
    """A function after which no call is a quick one."""
    return lambda: monkeypatch.setattr(plans.Plan, "quick", property(lambda plan: {}))


def bits(tensor):
    wide = tensor if not tensor.is_floating_point() else tensor.astype("float32")
    return str(tensor.dtype), wide.numpy().tobytes()


def step(level, dtype):
    paddle.seed(1)
    layer, x = paddle.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, activation="gelu"), paddle.randn([4, 20, 64])
    x.stop_gradient = False
    with policy_region(Policy(level, dtype)):
        y = layer(x)
        (y * y).astype("float32").mean().backward()
    return [bits(t) for t in (y, x.grad, *(p.grad for p in layer.parameters()))]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_training_step_comes_to_the_same_bits(level, dtype, the_whole_way):
    short = step(level, dtype)
    the_whole_way()
    assert step(level, dtype) == short


def calls():
    """Calls of all kinds: what is common, and what is not."""
    paddle.seed(2)
    f = paddle.randn([6, 8, 16])
    half, brain, double, whole = (f.astype(d) for d in ("float16", "bfloat16", "float64", "int64"))
    yield from (F.relu(t) for t in (f, half, brain, double))
    yield from (a + b for a in (f, half, brain) for b in (f, half, brain))
    yield from (whole + whole, double * double, half * 2, brain * 0.5, half * whole.astype("bool").astype("float16"))
    yield from (paddle.matmul(x=f, y=half, transpose_y=True), paddle.matmul(brain, f.transpose([0, 2, 1])))
    yield from (F.softmax(half), F.softmax(f, axis=1), F.softmax(half, dtype="float64"), F.softmax(brain, dtype="float32"))
    yield from (half.sum(), paddle.sum(brain, axis=[0, 1]), paddle.sum(half, dtype="float32"), paddle.mean(f, axis=1))
    yield from (half.reshape([6, -1]), brain.transpose([2, 0, 1]), half.reshape([paddle.to_tensor(48), 16]), half.flatten())
    yield from (paddle.concat([half, f]), paddle.stack([brain, brain]), paddle.where(f > 0, half, half), half[2], brain[:, 1:])
    yield from (paddle.maximum(half, half), paddle.maximum(f, brain), paddle.clip(half, -1.0, 1.0), paddle.pow(brain, 2))
    yield from (F.layer_norm(half, 16), F.linear(f, f[0].t()), F.linear(half, f[0].t(), paddle.ones([8])), F.gelu(brain))
    yield paddle.add(half, paddle.ones([16], "float16"))
    yield F.conv1d(f, paddle.ones([4, 8, 3]), paddle.ones([4]))
    yield paddle.einsum("abc,abd->acd", half, f)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("level", LEVELS)
def test_calls_of_all_kinds_come_to_the_same(level, dtype, the_whole_way):
    def run():
        with policy_region(Policy(level, dtype)):
            results = list(calls())
        return [bits(result) for result in results]

    short = run()
    the_whole_way()
    assert run() == short


def test_the_commonest_calls_are_short(monkeypatch):
    taken = []

    def spied(operator, rule):
        found = unamp_paddle.calls.quick(operator, rule)

        def short(*args):
            result = found(*args)
            taken.append((operator.op, result is not NotImplemented))
            return result

        return found and short

    monkeypatch.setattr(plans, "quick", spied)
    paddle.seed(1)
    with policy_region(Policy("O1", "bfloat16", allow="sinh")):  # nobody else's policy: its plan is made here
        paddle.nn.TransformerEncoderLayer(32, 4, 64)(paddle.randn([2, 5, 32]))
    ran = [op for op, short in taken if short]
    assert ran.count("linear") == 6
    assert {"matmul", "softmax", "add", "relu", "reshape", "transpose"} <= set(ran)


def test_an_output_that_is_given_is_not_touched():
    x, out = paddle.ones([4, 4]), paddle.zeros([4, 4])
    with policy_region(Policy("O1", "float16")):
        paddle.matmul(x, x, out=out)
    assert out.dtype == paddle.float32
    assert np.all(out.numpy() == 4)


def test_an_addition_is_read_in_few_files():
    x, y = paddle.ones([4, 4]), paddle.ones([4, 4])
    with policy_region(Policy("O1", "bfloat16", allow="add")):
        x + y
        assert 0 < changes_of_file(lambda: x + y) <= 6
