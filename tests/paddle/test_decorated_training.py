"""Training with decorated optimizers on PaddlePaddle: what they reach, keep, resume and put back."""

import math

import numpy as np
import paddle
import pytest
from decorated import (
    F32,
    LOW,
    NETWORKS,
    evaluated,
    float32_loss,
    give,
    loss_of,
    made,
    numbers,
    renamed,
    rounded,
    same,
    sgd,
    trained,
    values,
    weights,
)
from paddle import nn
from unamp_paddle.masters import masters_of

import unamp


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("level", ["O2", "O3"])
@pytest.mark.parametrize("dtype", LOW)
def test_training_with_an_overflow_reaches_the_loss_of_float32(kind, level, dtype):
    network, policy = made(kind), {"level": level, "dtype": dtype}
    optimizer = paddle.optimizer.AdamW(0.01, parameters=network.parameters())
    unamp.decorate(network, optimizer, level, dtype)
    scaler = unamp.GradScaler(1024.0)
    for step in range(200):
        before = weights(optimizer, network) if step == 50 else []
        scaler.scale(loss_of(network, step, overflow=step == 50, **policy)).backward()
        assert scaler.step(optimizer) is (step != 50)
        scaler.update()
        optimizer.clear_grad()
        assert scaler.get_scale() == (1024.0 if step < 50 else 512.0)
        if step == 50:
            assert same(before, weights(optimizer, network))
            assert same(rounded(before, dtype), rounded([numbers(p) for p in trained(network)], dtype))
    assert {p.dtype for p in network.parameters()} == {LOW[dtype]} | ({F32} if kind == "conv" else set())
    assert evaluated(network, **policy) == pytest.approx(float32_loss(kind), rel=0.03)


@pytest.mark.parametrize("kwargs", [{}, {"save_dtype": "float32"}, {"master_grad": True}], ids=str)
@pytest.mark.parametrize(("kind", "dtype"), [("conv", "float16"), ("mlp", "bfloat16")])
def test_a_resumed_training_ends_where_an_uninterrupted_one_does(kind, dtype, kwargs, tmp_path):
    def start():
        network, rate = made(kind), paddle.optimizer.lr.StepDecay(0.01, step_size=5)
        optimizer = paddle.optimizer.Adam(
            rate, parameters=network.parameters(), weight_decay=0.01, grad_clip=paddle.nn.ClipGradByGlobalNorm(0.5)
        )
        unamp.decorate(network, optimizer, "O2", dtype, **kwargs)
        return network, optimizer, rate, unamp.GradScaler(4096.0, growth_interval=3)

    def run(network, optimizer, rate, scaler, steps):
        for step in steps:
            for part in range(2):
                loss = loss_of(network, 100 * part + step, overflow=step in (4, 11), level="O2", dtype=dtype)
                scaled = scaler.scale(loss / 2)
                scaled.backward()
            scaler.minimize(optimizer, scaled)
            optimizer.clear_grad()
            rate.step()

    whole, first = start(), start()
    run(*whole, range(20))
    run(*first, range(8))
    path = str(tmp_path / "checkpoint")
    paddle.save([first[0].state_dict(), first[1].state_dict(), first[3].state_dict()], path)
    network, optimizer, rate, scaler = start()
    states = paddle.load(path)
    network.set_state_dict(states[0])
    names = {old.name: new.name for old, new in zip(first[0].parameters(), network.parameters(), strict=True)}
    optimizer.set_state_dict(renamed(states[1], names))
    scaler.load_state_dict(states[2])
    assert same(values(network), values(first[0]))
    run(network, optimizer, rate, scaler, range(8, 20))
    assert same(values(network), values(whole[0]))
    assert same(weights(optimizer, network), weights(whole[1], whole[0]))
    assert scaler.state_dict() == whole[3].state_dict()


@pytest.mark.parametrize("kind", ["SGD", "Momentum", "Adam"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_is_loaded_before_decorating_is_what_is_loaded_after(kind, dtype, tmp_path):
    """As Paddle's own test of pure float16 training does it: a new network, its state, the optimizer's, then `decorate`."""

    def start(path=None, *, names=None):
        network = made("conv")
        optimizer = getattr(paddle.optimizer, kind)(0.01, parameters=network.parameters())
        scaler = unamp.GradScaler(1024.0)
        if path is not None:
            states = paddle.load(path)
            names = {old: new.name for old, new in zip(names, network.parameters(), strict=True)}
            network.set_state_dict(states["model"])
            optimizer.set_state_dict(renamed(states["optimizer"], names))
            scaler.load_state_dict(states["scaler"])
        unamp.decorate(network, optimizer, "O2", dtype, save_dtype="float32")
        return network, optimizer, scaler

    def run(network, optimizer, scaler, steps):
        for step in steps:
            scaler.scale(loss_of(network, step, level="O2", dtype=dtype)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.clear_grad()

    whole, first, path = start(), start(), str(tmp_path / "checkpoint")
    run(*whole, range(6))
    run(*first, range(3))
    paddle.save({"model": first[0].state_dict(), "optimizer": first[1].state_dict(), "scaler": first[2].state_dict()}, path)
    second = start(path, names=[parameter.name for parameter in first[0].parameters()])
    assert same(values(second[0]), values(first[0]))
    assert same(weights(second[1], second[0]), weights(first[1], first[0]))
    run(*second, range(3, 6))
    assert same(values(second[0]), values(whole[0]))
    assert same(weights(second[1], second[0]), weights(whole[1], whole[0]))


def test_master_weights_that_were_loaded_for_others_are_told_of():
    first, network = made(), made()
    optimizer, its = sgd(first), sgd(network)
    unamp.decorate(first, optimizer, "O2")
    its.set_state_dict(optimizer.state_dict() | {"master_weights": {"of_nobody": paddle.zeros([3])}})
    expected = values(network)
    with pytest.warns(unamp.AmpWarning, match=r"does not have \(of_nobody\)"):
        unamp.decorate(network, its, "O2")
    assert same(weights(its, network), expected)


OPTIMIZERS = {
    "SGD": {},
    "Momentum": {"momentum": 0.9, "use_nesterov": True},
    "Adam": {"amsgrad": True},
    "AdamW": {},
    "Adadelta": {},
    "Adagrad": {},
    "Adamax": {},
    "ASGD": {"batch_num": 2},
    "Lamb": {},
    "NAdam": {},
    "RAdam": {},
    "RMSProp": {"momentum": 0.9, "centered": True},
    "Rprop": {},
}


def grouped(name, network):
    """An optimizer with a schedule and clipping; where the optimizer can, with groups and weight decay."""
    kwargs = OPTIMIZERS[name] | {"grad_clip": nn.ClipGradByGlobalNorm(0.5)}
    parameters = network.parameters()
    if name not in ("ASGD", "Lamb", "Rprop"):
        first, others = network[0].parameters(), [p for layer in network[1:] for p in layer.parameters()]
        parameters = [{"params": first, "learning_rate": 0.3}, {"params": others, "weight_decay": 0.1}]
        kwargs |= {"weight_decay": 0.01}
    rate = paddle.optimizer.lr.ExponentialDecay(0.01, 0.9)
    # Rprop takes a number only.
    return getattr(paddle.optimizer, name)(0.01 if name == "Rprop" else rate, parameters=parameters, **kwargs), rate


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_master_weights_are_those_of_float32_steps_with_the_same_gradients(name, dtype):
    network, exact = made(), made()
    (optimizer, rate), (theirs, their_rate) = grouped(name, network), grouped(name, exact)
    unamp.decorate(network, optimizer, "O2", dtype)
    assert isinstance(optimizer, type(theirs))
    for step in range(6):
        loss_of(network, step, level="O2", dtype=dtype).backward()
        assert {(p.dtype, p.grad.dtype) for p in network.parameters()} == {(LOW[dtype], LOW[dtype])}
        gradients = [numbers(p.grad) for p in network.parameters()]
        give(exact, gradients)
        for each in (optimizer, theirs, rate, their_rate):
            each.step()
        assert {(p.dtype, p.grad.dtype) for p in network.parameters()} == {(LOW[dtype], LOW[dtype])}
        assert same(gradients, [numbers(p.grad) for p in network.parameters()])
        optimizer.clear_grad()
        theirs.clear_grad()
    assert same(weights(optimizer, network), values(exact))
    assert same(values(network), rounded(values(exact), dtype))
    assert rate() == their_rate()
    assert all(value.dtype != LOW[dtype] for own in optimizer._accumulators.values() for value in own.values())


@pytest.mark.parametrize("dtype", LOW)
def test_small_updates_are_kept(dtype):
    moved = []
    for master_weight in (None, False):
        network = nn.Linear(4, 4, bias_attr=False)
        network.weight.set_value(np.ones([4, 4], "float32"))
        optimizer = sgd(network, 1e-5)
        unamp.decorate(network, optimizer, "O2", dtype, master_weight=master_weight)
        network.weight.astype("float32").sum().backward()
        for _ in range(1000):
            optimizer.step()
        moved.append(numbers(network.weight).mean())
        assert network.weight.dtype == LOW[dtype]
    assert moved[0] == pytest.approx(0.99, abs=0.002)
    assert moved[1] == 1.0


def test_minimize_and_gradients_that_are_handed_over():
    for take in (
        lambda optimizer, loss: optimizer.minimize(loss),
        lambda optimizer, loss: optimizer.minimize(loss, parameters=optimizer._parameter_list),
        lambda optimizer, loss: optimizer.apply_gradients(optimizer.backward(loss)),
        lambda optimizer, loss: optimizer.apply_gradients([(p, p.grad.clone()) for p in optimizer._parameter_list]),
    ):
        network, exact = made(), made()
        optimizer, theirs = sgd(network), sgd(exact)
        unamp.decorate(network, optimizer, "O2")
        loss = loss_of(network, 0, level="O2", dtype="float16")
        loss.backward()
        give(exact, [numbers(p.grad) for p in network.parameters()])
        take(optimizer, loss)
        theirs.step()
        assert same(weights(optimizer, network), values(exact))
        assert {p.dtype for p in network.parameters()} == {paddle.float16}


def test_a_closure_sees_the_low_weights():
    network = made()
    optimizer = paddle.optimizer.LBFGS(parameters=network.parameters(), max_iter=5)
    unamp.decorate(network, optimizer, "O2", "bfloat16")
    seen = []

    def closure():
        optimizer.clear_grad()
        seen.append({p.dtype for p in network.parameters()})
        loss = loss_of(network, 0, level="O2", dtype="bfloat16")
        loss.backward()
        return loss

    first = float(optimizer.step(closure))
    assert seen == [{paddle.bfloat16}] * len(seen)
    assert len(seen) >= 5
    assert float(closure()) < 0.5 * first


@pytest.mark.parametrize("name", ["SGD", "Momentum", "Lamb"])
def test_a_step_in_an_open_region_is_the_same(name):
    ended = []
    for inside in (False, True):
        network = made()
        optimizer, _ = grouped(name, network)
        unamp.decorate(network, optimizer, "O3")
        loss_of(network, 0, level="O3", dtype="float16").backward()
        with unamp.autocast(enabled=inside, level="O3", dtype="float16"):
            optimizer.step()
        ended.append(weights(optimizer, network))
    assert same(*ended)


def test_whatever_happens_in_a_step_everything_is_put_back():
    class Fails(paddle.optimizer.SGD):
        def step(self):
            super().step()
            raise ArithmeticError

    network = made()
    optimizer = Fails(0.1, parameters=network.parameters())
    unamp.decorate(network, optimizer, "O2")
    loss_of(network, 0, level="O2", dtype="float16").backward()
    before, gradients = values(network), [numbers(p.grad) for p in network.parameters()]
    with pytest.raises(ArithmeticError):
        optimizer.step()
    assert {(p.dtype, p.grad.dtype) for p in network.parameters()} == {(paddle.float16, paddle.float16)}
    assert same(gradients, [numbers(p.grad) for p in network.parameters()])
    assert not same(before, values(network))  # what the step had done already
    assert same(values(network), rounded(weights(optimizer, network), "float16"))


def test_clipping_sees_unscaled_float32_gradients():
    network = made()
    optimizer = sgd(network)
    unamp.decorate(network, optimizer, "O2")
    loss_of(network, 0, level="O2", dtype="float16").backward()
    plain = [numbers(p.grad) for p in network.parameters()]
    optimizer.clear_grad()
    scaler = unamp.GradScaler(2.0**12)
    scaler.scale(loss_of(network, 0, level="O2", dtype="float16")).backward()
    scaler.unscale_(optimizer)
    assert {p.grad.dtype for p in network.parameters()} == {F32}
    norm = paddle.nn.utils.clip_grad_norm_(network.parameters(), 0.1)
    assert float(norm) == pytest.approx(math.hypot(*map(np.linalg.norm, plain)), rel=0.01)
    pairs = zip(weights(optimizer, network), network.parameters(), strict=True)
    exact = [weight - np.float32(0.1) * numbers(parameter.grad) for weight, parameter in pairs]
    assert scaler.step(optimizer) is True
    for after, expected in zip(weights(optimizer, network), exact, strict=True):
        np.testing.assert_allclose(after, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("set_to_zero", [True, False])
def test_gradients_are_low_again_after_they_are_cleared(set_to_zero):
    network = made()
    optimizer = sgd(network)
    unamp.decorate(network, optimizer, "O2")
    for step in range(2):
        scaler = unamp.GradScaler(64.0)
        for part in range(2):
            scaler.scale(loss_of(network, part, overflow=step == 1, level="O2", dtype="float16")).backward()
        assert {p.grad.dtype for p in network.parameters()} == {paddle.float16}
        assert scaler.step(optimizer) is (step == 0)
        optimizer.clear_grad(set_to_zero)


def test_a_tiny_gradient_survives_unscaling():
    network = nn.Linear(1, 1, bias_attr=False)
    optimizer = sgd(network, 1.0)
    unamp.decorate(network, optimizer, "O2")
    scaler = unamp.GradScaler(2.0**16)
    scaler.scale(network.weight.astype("float32").sum() * 2.0**-30).backward()
    assert scaler.step(optimizer) is True  # float16's smallest number is 2**-24
    assert network.weight.grad.item() == 2.0**-30


def test_without_master_weights_unscaling_float16_is_refused():
    network = made()
    optimizer = sgd(network)
    unamp.decorate(network, optimizer, "O2", master_weight=False)
    scaler = unamp.GradScaler(8.0)
    scaler.scale(loss_of(network, 0, level="O2", dtype="float16")).backward()
    with pytest.raises(ValueError, match="there are float16 gradients"):
        scaler.step(optimizer)
    assert masters_of(optimizer) is None
    assert "master_weights" not in optimizer.state_dict()


@pytest.mark.parametrize("dtype", LOW)
def test_master_grad_adds_up_in_float32(dtype):
    network = made()
    optimizer = sgd(network)
    unamp.decorate(network, optimizer, "O2", dtype, master_grad=True)
    for clear in (None, True, False):
        if clear is not None:
            optimizer.clear_grad(clear)
        expected = [np.zeros(p.shape, "float32") for p in network.parameters()]
        for step in range(4):
            gradients = paddle.grad(loss_of(network, step, level="O2", dtype=dtype), network.parameters())
            expected = [total + numbers(gradient) for total, gradient in zip(expected, gradients, strict=True)]
            loss_of(network, step, level="O2", dtype=dtype).backward()
        assert {p.grad.dtype for p in network.parameters()} == {F32}
        assert same(expected, [p.grad.numpy() for p in network.parameters()])
    before = weights(optimizer, network)
    optimizer.step()
    for after, weight, gradient in zip(weights(optimizer, network), before, expected, strict=True):
        np.testing.assert_allclose(after, weight - np.float32(0.1) * gradient, rtol=1e-6, atol=1e-9)
