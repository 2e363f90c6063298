"""`unamp.decorate` on MindSpore gives low parameters and optimizers with master weights."""

import mindspore as ms
import numpy as np
import pytest
from decorated import data, grads_of, made, values
from mindspore import ParameterTuple, Tensor, nn, ops
from stepping import *  # noqa: F403
from stepping import same

import unamp


def test_parameters_are_low_where_they_are():
    net = made("convolutions")
    before, names, numbers = (
        list(net.get_parameters()),
        list(net.parameters_dict()),
        values(net.get_parameters()),
    )
    optimizer = nn.Adam(
        [
            {"params": net.conv.trainable_params(), "lr": 0.01},
            {"params": net.head.trainable_params()},
        ]
    )
    held = optimizer.parameters
    assert unamp.decorate(net, optimizer, "O2", "bfloat16") == (net, optimizer)
    assert all(old is new for old, new in zip(before, net.get_parameters(), strict=True))
    assert list(net.parameters_dict()) == names
    assert net.conv.weight.dtype == ms.bfloat16
    np.testing.assert_allclose(numbers[0], values([net.conv.weight])[0], rtol=2**-8)
    assert optimizer.parameters is held
    assert isinstance(optimizer, nn.Adam)
    assert {each.dtype for each in (*optimizer.master_weights, *optimizer.moment1)} == {ms.float32}


def test_what_stays_as_it_is():
    for level in ("O0", "OD", "O1"):
        net = made()
        optimizer = nn.SGD(net.trainable_params(), 0.1)
        unamp.decorate(net, optimizer, level)
        assert {each.dtype for each in net.get_parameters()} == {ms.float32}
        assert type(optimizer) is nn.SGD
    net = made("attention")
    assert unamp.decorate(net, level="O2", excluded_layers=[nn.LayerNorm, net.head]) is net
    low = [each.name for each in net.get_parameters() if each.dtype == ms.float16]
    assert low == ["inward.weight", "inward.bias"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_resumed_run_ends_as_one_that_was_not_killed(dtype, tmp_path):
    def begun():
        net = made()
        optimizer = nn.AdamWeightDecay(
            net.trainable_params(), nn.ExponentialDecayLR(0.02, 0.9, 4), weight_decay=0.01
        )
        unamp.decorate(net, optimizer, "O2", dtype)
        scaler = unamp.GradScaler(1024.0, growth_interval=3)
        return net, optimizer, scaler, grads_of(net, scaler, dtype=dtype)

    def run(net, optimizer, scaler, step, numbers):
        for number in numbers:
            scaler.step(optimizer, gradients=step(number)[1])
            scaler.update()
        return values(net.get_parameters()) + values(optimizer.get_parameters())

    whole, killed, resumed = begun(), begun(), begun()
    wanted = run(*whole, range(12))
    run(*killed, range(7))
    ms.save_checkpoint(killed[1], str(tmp_path / "optimizer.ckpt"))
    assert any(
        name.startswith("master_weight.")
        for name in ms.load_checkpoint(str(tmp_path / "optimizer.ckpt"))
    )
    ms.load_param_into_net(resumed[1], ms.load_checkpoint(str(tmp_path / "optimizer.ckpt")))
    resumed[2].load_state_dict(killed[2].state_dict())
    assert same(values(killed[0].get_parameters()), values(resumed[0].get_parameters()))
    assert same(wanted, run(*resumed, range(7, 12)))


def half(*shape):
    return Tensor(np.full(shape or (8, 8), 0.5, "float16"))


def assign_in_a_graph(weight):
    @ms.jit
    def assigned(x):
        ops.assign(weight, x)
        return x

    assigned(half())


CHANGES = {
    "set_data": lambda weight: weight.set_data(half()),
    "assign_value": lambda weight: weight.assign_value(half()),
    "a number": lambda weight: weight.__setitem__((0, 0), 0.5),
    "ops.assign": lambda weight: ops.assign(weight, half()),
    "a graph": assign_in_a_graph,
    "NumPy": lambda weight: weight.asnumpy().__setitem__((7, 7), 0.5),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_master_weights_follow_every_change(change):
    layer = nn.Dense(8, 8)
    optimizer = nn.SGD(layer.trainable_params(), 0.0)
    unamp.decorate(layer, optimizer, "O2", "float16")
    gradients = tuple(ops.ones_like(each) for each in optimizer.parameters)
    optimizer(gradients)  # after this step, the optimizer has values to compare the parameter with
    before, rounded = values([optimizer.master_weights[0], layer.weight])
    change(layer.weight)
    low = layer.weight.asnumpy().copy()
    assert not np.array_equal(low, rounded)
    for _ in range(2):
        optimizer(gradients)
        after, weight = values([optimizer.master_weights[0], layer.weight])
        assert np.array_equal(after, np.where(rounded == low, before, low))
        assert np.array_equal(weight, low)


def test_cells_that_train():
    net = made()
    optimizer = nn.Momentum(net.trainable_params(), 0.02, 0.9)
    unamp.decorate(net, optimizer, "O2", "float16")
    train = nn.TrainOneStepCell(
        nn.WithLossCell(unamp.auto_mixed_precision(net, "O2"), nn.MSELoss()), optimizer
    )
    losses = [float(train(*map(Tensor, data(0))).asnumpy()) for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    assert net[0].weight.dtype == ms.float16


def test_what_is_compiled_is_refused(graph_mode):
    net = made()
    optimizer = nn.Momentum(net.trainable_params(), 0.02, 0.9)
    unamp.decorate(net, optimizer, "O2", "float16")
    before = values(net.get_parameters())
    gradients = tuple(ops.ones_like(each) for each in optimizer.parameters)
    with pytest.raises(
        unamp.NotExpressible, match="a compiled graph cannot step the master weights"
    ):
        optimizer(gradients)
    ms.set_context(mode=ms.PYNATIVE_MODE)

    @ms.jit
    def step(*gradients):
        return optimizer(gradients)

    with pytest.raises(ValueError, match="a compiled graph cannot step the master weights"):
        step(*gradients)
    assert same(before, values(net.get_parameters()))
    optimizer(gradients)
    assert not same(before, values(net.get_parameters()))


def test_a_compiled_network_sees_the_steps():
    net, x = made(), Tensor(data(0)[0]).astype(ms.float16)
    optimizer = nn.SGD(net.trainable_params(), 0.5)
    unamp.decorate(net, optimizer, "O2", "float16")

    @ms.jit
    def forward(x):
        return net(x)

    for _ in range(2):
        np.testing.assert_allclose(forward(x).asnumpy(), net(x).asnumpy(), rtol=2**-8, atol=2**-8)
        optimizer(tuple(ops.ones_like(each) for each in optimizer.parameters))


def test_a_step_that_fails_leaves_the_optimizer_as_it_was():
    net = made()
    optimizer = nn.Momentum(net.trainable_params(), 0.02, 0.9)
    unamp.decorate(net, optimizer, "O2", "float16")
    held, kind = optimizer.parameters, type(optimizer)
    with pytest.raises(Exception, match="."):  # MindSpore's own error, of any class
        optimizer((Tensor(np.ones(3, "float16")),))
    assert (optimizer.parameters, type(optimizer)) == (held, kind)
    assert isinstance(optimizer.parameters, ParameterTuple)
    assert optimizer.parameters[0] is net[0].weight
