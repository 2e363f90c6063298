"""The scaler on MindSpore, where gradients are values."""

import math

import mindspore
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import Parameter, Tensor, nn, ops
from mindspore.experimental import optim

import unamp


def network():
    np.random.seed(7)
    weight = [Tensor(np.random.randn(*shape).astype("float32") * 0.3) for shape in ((16, 8), (1, 16))]
    return nn.SequentialCell(nn.Dense(8, 16, weight_init=weight[0]), nn.ReLU(), nn.Dense(16, 1, weight_init=weight[1]))


def training(net, optimizer, scaler, **policy):
    def loss_of(x, y):
        with unamp.autocast(**{"dtype": "float16"} | policy):
            loss = ops.mse_loss(net(x), y)
        return scaler.scale(loss), loss

    graded = mindspore.value_and_grad(loss_of, None, optimizer.parameters, has_aux=True)

    def step(number, *, overflow=False):
        x = np.random.default_rng(number).standard_normal((16, 8), dtype="float32")
        y = np.sin(x.sum(1, keepdims=True))
        (_, loss), gradients = graded(Tensor(x * np.float32(math.inf) if overflow else x), Tensor(y))
        return float(loss.asnumpy()), gradients

    return step


def values(net):
    return [parameter.asnumpy().copy() for parameter in net.trainable_params()]


@settings(deadline=None, max_examples=20)
@given(st.lists(st.booleans(), max_size=8), st.integers(1, 3))
def test_after_any_sequence_the_scale_is_the_references(overflows, growth_interval):
    scaler = unamp.GradScaler(1024.0, growth_interval=growth_interval)
    w = Parameter(Tensor(np.ones(3, "float32")), name="w")
    optimizer = nn.SGD([w], 0.125)
    scaler.scale(Tensor(np.float32(1.0)))
    scale, good, steps = 1024.0, 0, 0
    for overflow in overflows:
        gradient = Tensor(np.full(3, math.inf if overflow else scale * 0.25, "float32"))
        assert scaler.step(optimizer, gradients=(gradient,)) is not overflow
        scaler.update()
        good, steps = (0, steps) if overflow else (good + 1, steps + 1)
        scale = scale / 2 if overflow else scale
        if good == growth_interval:
            scale, good = scale * 2, 0
        assert scaler.get_scale() == scale
        np.testing.assert_allclose(w.asnumpy(), 1 - 0.03125 * steps, rtol=1e-6)
    assert scaler.skipped == sum(overflows)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_training_with_an_overflow_reaches_the_loss_of_float32(dtype):
    def train(scaler, **policy):
        net = network()
        optimizer = nn.Momentum(net.trainable_params(), 0.02, 0.9)
        step = training(net, optimizer, scaler, **policy)
        for number in range(60):
            before = values(net)
            _, gradients = step(number, overflow=scaler.is_enabled() and number == 20)
            scale, ran = scaler.get_scale(), scaler.step(optimizer, gradients=gradients)
            scaler.update()
            if scaler.is_enabled():
                assert ran is (number != 20)
            if not ran:
                assert scaler.get_scale() == scale / 2
                assert all(np.array_equal(*pair) for pair in zip(before, values(net), strict=True))
        return sum(step(1000 + number)[0] for number in range(8)) / 8

    scaler = unamp.GradScaler(1024.0)
    low, exact = train(scaler, dtype=dtype), train(unamp.GradScaler(enabled=False), enabled=False)
    assert scaler.skipped == 1
    assert low == pytest.approx(exact, rel=0.03)


def test_clipping_and_naming():
    net, scaler = network(), unamp.GradScaler(2.0**10)
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    _, scaled = training(net, optimizer, scaler, enabled=False)(0)
    _, plain = training(net, optimizer, unamp.GradScaler(enabled=False), enabled=False)(0)
    unscaled = scaler.unscale_(optimizer, scaled)
    for mine, own in zip(unscaled, plain, strict=True):
        np.testing.assert_allclose(mine.asnumpy(), own.asnumpy(), rtol=1e-6, atol=1e-9)
    clipped = ops.clip_by_global_norm(unscaled, 0.1)
    before = values(net)
    assert scaler.step(optimizer, gradients=clipped) is True
    for old, new, gradient in zip(before, values(net), clipped, strict=True):
        np.testing.assert_allclose(new, old - 0.1 * gradient.asnumpy(), rtol=1e-5, atol=1e-7)
    scaler.update()
    spoilt = (scaled[0], Tensor(np.full(scaled[1].shape, math.nan, "float32")), *scaled[2:])
    assert scaler.step(optimizer, gradients=spoilt) is False
    assert scaler.first_nonfinite(optimizer, net, spoilt) == "0.bias"
    assert scaler.first_nonfinite(optimizer, gradients=spoilt) == optimizer.parameters[1].name


def test_gradients_must_be_handed_over():
    w = Parameter(Tensor(np.ones(3, "float32")), name="w")
    scaler = unamp.GradScaler()
    scaler.scale(Tensor(np.float32(1.0)))
    with pytest.raises(TypeError, match="MindSpore's gradients are values: hand them over"):
        scaler.step(nn.SGD([w], 0.1))
    with pytest.raises(ValueError, match="there are float16 gradients"):
        scaler.step(nn.SGD([w], 0.1), gradients=[Tensor(np.ones(3, "float16"))])


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("kind", [nn.Adam, optim.AdamW, optim.RMSprop, optim.Adamax])
def test_no_policy_reaches_a_step(kind, scaled):
    def stepped(level):
        w = Parameter(Tensor(np.float32([1.0, -2.0])), name="w")
        optimizer, scaler = kind([w], 0.1), unamp.GradScaler()
        scaler.scale(Tensor(np.float32(1.0)))
        with unamp.autocast(level=level, dtype="float16"):
            for numbers in ([0.3, 0.7], [0.1, -0.9]):
                gradients = (Tensor(np.float32(numbers) * (scaler.get_scale() if scaled else 1)),)
                if scaled:
                    scaler.step(optimizer, gradients=gradients)
                    scaler.update()
                else:
                    optimizer(gradients)
        return w.asnumpy()

    assert np.array_equal(stepped("O3"), stepped("O0"))
