"""`auto_mixed_precision` on Paddle's layers."""

import copy

import numpy as np
import paddle
import pytest
from unamp_paddle.conformance.operations import PaddleOperations

import unamp

F32 = paddle.float32


def made():
    paddle.seed(1)
    return paddle.nn.Sequential(
        paddle.nn.Conv2D(1, 4, 3), paddle.nn.BatchNorm2D(4), paddle.nn.ReLU(), paddle.nn.Flatten(), paddle.nn.Linear(144, 5)
    )


@pytest.mark.parametrize("dtype", ["float16", paddle.bfloat16])
@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_a_layer_computes_low_and_returns_float32(level, dtype):
    network, x = made(), paddle.randn([2, 1, 8, 8])
    with unamp.trace() as trace:
        found = unamp.auto_mixed_precision(network, level, dtype)(x)
    low = str(dtype).removeprefix("paddle.")
    computed = {record.op: record.compute for record in trace.records}
    assert computed["conv2d"] == computed["linear"] == computed["relu"] == low
    assert computed["batch_norm"] == (low if level == "O3" else "float32")
    assert found.dtype == F32
    assert float((found - network(x)).abs().max()) < 0.1


def test_the_layer_stays_a_layer():
    network, x = made(), paddle.randn([2, 1, 8, 8])
    wrapped = unamp.auto_mixed_precision(network, "O2", "bfloat16")
    assert isinstance(wrapped, paddle.nn.Sequential)
    assert list(wrapped.state_dict()) == list(network.state_dict())
    assert all(a is b for a, b in zip(wrapped.parameters(), network.parameters(), strict=True))
    wrapped.eval()
    assert not network.training
    wrapped(x).sum().backward()
    assert {p.grad.dtype for p in network.parameters() if p.grad is not None} == {F32}
    copied = copy.deepcopy(wrapped)
    assert bool((copied(x) == wrapped(x)).all())
    assert copied[0].weight is not network[0].weight


def test_bad_arguments():
    with pytest.raises(TypeError, match="paddle.nn.Layer"):
        unamp.auto_mixed_precision(paddle.nn.functional.relu, "O1")
    with pytest.raises(ValueError, match="float64"):
        unamp.auto_mixed_precision(made(), "O1", paddle.float64)


def test_running_statistics_of_the_suites_operations_take_the_canonical_momentum():
    """Paddle's momentum is the share of what was there before; the canonical one that of what is new."""
    operations = PaddleOperations()
    x = paddle.randn([4, 3, 8, 8])
    mean, variance, ones, zeros = (operations.tensor(np.full(3, value, np.float32)) for value in (0.0, 1.0, 1.0, 0.0))
    operations["batch_norm"](x, mean, variance, ones, zeros, training=True, momentum=0.25)
    assert np.allclose(mean.numpy(), 0.25 * x.numpy().mean((0, 2, 3)), atol=1e-6)
    assert np.allclose(variance.numpy(), 0.75 + 0.25 * x.numpy().var((0, 2, 3)), atol=1e-6)
