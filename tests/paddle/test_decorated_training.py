"""Training with low parameters on Paddle steps, saves and restores as float32 training does."""

import paddle
import pytest
from decorated import (
    give,
    loss_of,
    made,
    numbers,
    renamed,
    same,
    sgd,
    values,
    weights,
)
from decorating import *  # noqa: F403 - the tests that are PyTorch's too

import unamp


@pytest.mark.parametrize("kwargs", [{}, {"save_dtype": "float32"}, {"master_grad": True}], ids=str)
@pytest.mark.parametrize(
    ("kind", "level", "dtype"),
    [("conv", "O2", "float16"), ("mlp", "O2", "bfloat16"), ("mlp", "O1", "float16")],
)
def test_a_resumed_training_ends_where_an_uninterrupted_one_does(
    kind, level, dtype, kwargs, tmp_path
):
    def start():
        network, rate = made(kind), paddle.optimizer.lr.StepDecay(0.01, step_size=5)
        optimizer = paddle.optimizer.Adam(
            rate,
            parameters=network.parameters(),
            weight_decay=0.01,
            grad_clip=paddle.nn.ClipGradByGlobalNorm(0.5),
        )
        unamp.decorate(network, optimizer, level, dtype, **kwargs)
        return network, optimizer, rate, unamp.GradScaler(4096.0, growth_interval=3)

    def run(network, optimizer, rate, scaler, steps):
        for step in steps:
            for part in range(2):
                loss = loss_of(
                    network, 100 * part + step, overflow=step in (4, 11), level=level, dtype=dtype
                )
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
    names = {
        old.name: new.name
        for old, new in zip(first[0].parameters(), network.parameters(), strict=True)
    }
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
    """Load and decorate in the order of Paddle's own test of pure float16 training.

    It makes a new network, loads its state and the optimizer's, then calls `decorate`.
    """

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
    paddle.save(
        {
            "model": first[0].state_dict(),
            "optimizer": first[1].state_dict(),
            "scaler": first[2].state_dict(),
        },
        path,
    )
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
    its.set_state_dict(
        optimizer.state_dict() | {"master_weights": {"of_nobody": paddle.zeros([3])}}
    )
    expected = values(network)
    with pytest.warns(unamp.AmpWarning, match=r"does not have \(of_nobody\)"):
        unamp.decorate(network, its, "O2")
    assert same(weights(its, network), expected)


def test_minimize_and_gradients_that_are_handed_over():
    for take in (
        lambda optimizer, loss: optimizer.minimize(loss),
        lambda optimizer, loss: optimizer.minimize(loss, parameters=optimizer._parameter_list),
        lambda optimizer, loss: optimizer.apply_gradients(optimizer.backward(loss)),
        lambda optimizer, loss: optimizer.apply_gradients(
            [(p, p.grad.clone()) for p in optimizer._parameter_list]
        ),
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
