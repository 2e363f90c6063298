"""Networks with low parameters, and the optimizers that step their master weights."""

import math
from functools import cache

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.experimental import optim

import unamp

LOW = {"float16": ms.float16, "bfloat16": ms.bfloat16}


def weight(*shape):
    return Tensor((np.random.standard_normal(shape) * 0.3).astype("float32"))


def mlp():
    return nn.SequentialCell(nn.Dense(6, 12, weight_init=weight(12, 6)), nn.Tanh(), nn.Dense(12, 1, weight_init=weight(1, 12)))


class Convolutions(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, has_bias=True, weight_init=weight(3, 1, 3, 3))
        self.norm = nn.BatchNorm2d(3)
        self.head = nn.Dense(12, 1, weight_init=weight(1, 12))

    def construct(self, x):
        y = ops.relu(self.norm(self.conv(x.reshape(-1, 1, 2, 3)[:, :, :, :2])))
        return self.head(y.reshape(y.shape[0], -1))


class Attention(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inward = nn.Dense(2, 4, weight_init=weight(4, 2))
        self.norm = nn.LayerNorm((4,))
        self.head = nn.Dense(4, 1, weight_init=weight(1, 4))

    def construct(self, x):
        y = self.inward(x.reshape(-1, 3, 2))
        scores = ops.softmax(ops.matmul(y, y.swapaxes(1, 2)), -1)
        return self.head(self.norm(ops.matmul(scores, y)).mean(1))


NETWORKS = {"mlp": mlp, "convolutions": Convolutions, "attention": Attention}


def made(network="mlp"):
    np.random.seed(3)
    return NETWORKS[network]()


def data(number):
    x = np.random.default_rng(number).standard_normal((8, 6), dtype="float32")
    return x, np.sin(x.sum(1, keepdims=True))


def grads_of(net, scaler, level="O2", dtype="float16", enabled=True):
    """A function of the step's number that gives the loss and scaled gradients."""

    def loss_of(x, y):
        with unamp.autocast(level=level, dtype=dtype, enabled=enabled):
            out = net(x)
        loss = ops.mse_loss(out.astype(ms.float32), y)
        return scaler.scale(loss), loss

    graded = ms.value_and_grad(loss_of, None, net.trainable_params(), has_aux=True)

    def step(number, *, overflow=False):
        x, y = data(number)
        (_, loss), gradients = graded(Tensor(x * np.float32(math.inf) if overflow else x), Tensor(y))
        return float(loss.asnumpy()), gradients

    return step


def loss_after(steps, step, optimizer, scaler):
    for number in range(steps):
        _, gradients = step(number % 16)
        scaler.step(optimizer, gradients=gradients)
        scaler.update()
    return sum(step(number)[0] for number in range(4)) / 4


def values(tensors):
    return [each.astype(ms.float32).asnumpy().copy() for each in tensors]


def same(before, after):
    return all(np.array_equal(*pair) for pair in zip(before, after, strict=True))


@cache
def exact(network, steps):
    net, scaler = made(network), unamp.GradScaler(enabled=False)
    optimizer = nn.Momentum(net.trainable_params(), 0.02, 0.9)
    return loss_after(steps, grads_of(net, scaler, enabled=False), optimizer, scaler)


@pytest.mark.parametrize(
    ("network", "level", "dtype", "steps"),
    [
        ("mlp", "O2", "float16", 200),
        ("mlp", "O2", "bfloat16", 200),
        ("mlp", "O3", "float16", 40),
        ("convolutions", "O2", "float16", 40),
        ("convolutions", "O2", "bfloat16", 40),
        ("attention", "O2", "float16", 40),
        ("attention", "O2", "bfloat16", 40),
    ],
)
def test_training_reaches_the_loss_of_float32(network, level, dtype, steps):
    net, scaler = made(network), unamp.GradScaler(1024.0)
    optimizer = nn.Momentum(net.trainable_params(), 0.02, 0.9)
    unamp.decorate(net, optimizer, level, dtype)
    loss = loss_after(steps, grads_of(net, scaler, level, dtype), optimizer, scaler)
    assert scaler.skipped == 0
    assert loss == pytest.approx(exact(network, steps), rel=0.03)
    kept = [each.name for each in net.get_parameters() if each.dtype == ms.float32]
    assert kept == ([each.name for each in net.norm.get_parameters()] if network == "convolutions" else [])


def test_parameters_are_low_where_they_are():
    net = made("convolutions")
    before, names, numbers = list(net.get_parameters()), list(net.parameters_dict()), values(net.get_parameters())
    optimizer = nn.Adam([{"params": net.conv.trainable_params(), "lr": 0.01}, {"params": net.head.trainable_params()}])
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
def test_an_overflow_skips_its_step_and_no_other(dtype):
    net, scaler = made(), unamp.GradScaler(1024.0)
    optimizer = nn.Adam(net.trainable_params(), 0.01)
    unamp.decorate(net, optimizer, "O2", dtype)
    step = grads_of(net, scaler, dtype=dtype)
    for number in range(6):
        before, state = values(net.get_parameters()), values(optimizer.get_parameters())
        _, gradients = step(number, overflow=number == 3)
        assert {each.dtype for each in gradients} == {LOW[dtype]}
        assert scaler.step(optimizer, gradients=gradients) is (number != 3)
        assert same(before, values(net.get_parameters())) is (number == 3)
        assert same(state, values(optimizer.get_parameters())) is (number == 3)
        if number == 3:
            assert scaler.first_nonfinite(optimizer, net, gradients) == "0.weight"
        scaler.update()
    assert (scaler.skipped, scaler.get_scale()) == (1, 512.0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_resumed_run_ends_as_one_that_was_not_killed(dtype, tmp_path):
    def begun():
        net = made()
        optimizer = nn.AdamWeightDecay(net.trainable_params(), nn.ExponentialDecayLR(0.02, 0.9, 4), weight_decay=0.01)
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
    assert any(name.startswith("master_weight.") for name in ms.load_checkpoint(str(tmp_path / "optimizer.ckpt")))
    ms.load_param_into_net(resumed[1], ms.load_checkpoint(str(tmp_path / "optimizer.ckpt")))
    resumed[2].load_state_dict(killed[2].state_dict())
    assert same(values(killed[0].get_parameters()), values(resumed[0].get_parameters()))
    assert same(wanted, run(*resumed, range(7, 12)))


OPTIMIZERS = {
    "SGD": lambda p: nn.SGD(p, 0.05, momentum=0.9, weight_decay=0.01),
    "Momentum": lambda p: nn.Momentum(p, nn.ExponentialDecayLR(0.05, 0.9, 2), 0.9, use_nesterov=True),
    "Adam": lambda p: nn.Adam(p, 0.01),
    "Adam of groups": lambda p: nn.Adam([{"params": p[:1], "lr": 0.1, "weight_decay": 0.1}, {"params": p[1:]}], 0.01),
    "AdamWeightDecay": lambda p: nn.AdamWeightDecay(p, 0.01, weight_decay=0.1),
    "RMSProp": lambda p: nn.RMSProp(p, 0.01, centered=True),
    "Adagrad": lambda p: nn.Adagrad(p, learning_rate=0.1),
    "Adadelta": lambda p: nn.Adadelta(p, 0.5),
    "experimental SGD": lambda p: optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01),
    "experimental AdamW": lambda p: optim.AdamW([{"params": p[:1], "lr": 0.1}, {"params": p[1:]}], 0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_master_weights_take_the_steps_of_float32(name):
    start = np.linspace(-1, 1, 8, dtype="float32")  # which bfloat16 rounds: master weights are not made of that
    low, exact = ([Parameter(Tensor(start), name=f"w{n}") for n in range(2)] for _ in range(2))
    net = nn.ParameterUpdate(low[0])
    net.insert_param_to_cell("second", low[1])
    optimizer = OPTIMIZERS[name](low)
    unamp.decorate(net, optimizer, "O2", "bfloat16")
    masters = list(optimizer.master_weights)
    assert same(values(masters), [start] * 2)
    reference = OPTIMIZERS[name](exact)
    for number in range(4):
        gradients = [Tensor(np.random.default_rng((number, n)).standard_normal(8, dtype="float32")) for n in range(2)]
        gradients = [each.astype(ms.bfloat16) for each in gradients]
        optimizer(tuple(gradients))
        reference(tuple(each.astype(ms.float32) for each in gradients))
    assert not same(values(masters), [start] * 2)
    assert same(values(masters), values(exact))
    assert same(values(low), values([each.astype(ms.bfloat16) for each in exact]))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_updates_that_the_low_dtype_would_lose_are_kept(dtype):
    w = Parameter(Tensor(np.ones(3, "float32")), name="w")
    net = nn.ParameterUpdate(w)
    optimizer = nn.SGD([w], 2.0**-12)
    unamp.decorate(net, optimizer, "O2", dtype)
    for _ in range(32):
        optimizer((Tensor(np.ones(3, "float32")).astype(LOW[dtype]),))
    assert same(values(optimizer.master_weights), [np.full(3, 1 - 2.0**-7, "float32")])
    assert same(values([w]), [np.full(3, 1 - 2.0**-7, "float32")])


@pytest.mark.parametrize("name", ["SGD", "Adadelta", "experimental AdamW"])
def test_no_policy_reaches_a_step(name):
    masters = []
    for enabled in (False, True):
        net = made()
        optimizer = OPTIMIZERS[name](net.trainable_params())
        unamp.decorate(net, optimizer, "O2", "float16")
        gradients = tuple(ops.ones_like(each) / 3 for each in optimizer.parameters)
        with unamp.autocast(level="O3", dtype="float16", enabled=enabled):
            for _ in range(2):
                optimizer(gradients)
        masters.append(values(optimizer.master_weights))
    assert same(*masters)


def test_without_master_weights():
    net, scaler = made(), unamp.GradScaler(1024.0)
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    unamp.decorate(net, optimizer, "O2", "float16", master_weight=False)
    _, gradients = grads_of(net, scaler)(0)
    with pytest.raises(ValueError, match="there are float16 gradients"):
        scaler.step(optimizer, gradients=gradients)
    assert type(optimizer) is nn.SGD


def test_a_parameter_that_is_given_another_value_keeps_it():
    net = made()
    optimizer = nn.SGD(net.trainable_params(), 2.0**-12)
    unamp.decorate(net, optimizer, "O2", "float16")
    ms.load_param_into_net(net, {"0.bias": Parameter(Tensor(np.full(12, 0.5, "float16")), name="0.bias")})
    optimizer(tuple(ops.ones_like(each) for each in optimizer.parameters))
    assert same(values([optimizer.master_weights[1]]), [np.full(12, 0.5 - 2.0**-12, "float32")])


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
    optimizer(gradients)  # after which there is something that the next step compares with
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
    train = nn.TrainOneStepCell(nn.WithLossCell(unamp.auto_mixed_precision(net, "O2"), nn.MSELoss()), optimizer)
    losses = [float(train(*map(Tensor, data(0))).asnumpy()) for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    assert net[0].weight.dtype == ms.float16


def test_what_is_compiled_is_refused(graph_mode):
    net = made()
    optimizer = nn.Momentum(net.trainable_params(), 0.02, 0.9)
    unamp.decorate(net, optimizer, "O2", "float16")
    before = values(net.get_parameters())
    gradients = tuple(ops.ones_like(each) for each in optimizer.parameters)
    with pytest.raises(unamp.NotExpressible, match="a compiled graph cannot step the master weights"):
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
    with pytest.raises(Exception, match="."):  # MindSpore's own, whichever it is
        optimizer((Tensor(np.ones(3, "float16")),))
    assert (optimizer.parameters, type(optimizer)) == (held, kind)
    assert isinstance(optimizer.parameters, ParameterTuple)
    assert optimizer.parameters[0] is net[0].weight


def test_bad_input_changes_nothing():
    net, optimizer = made(), None
    low, begun = made(), nn.SGD(net.trainable_params(), 0.1)
    unamp.decorate(low, level="O2")
    begun(tuple(ops.ones_like(each) for each in begun.parameters))
    for error, match, call in [
        (ValueError, "0.weight is float16 already", lambda: unamp.decorate([net, low], level="O2")),
        (ValueError, "SGD has begun", lambda: unamp.decorate(net, begun, "O2")),
        (TypeError, "excluded_layers takes cells", lambda: unamp.decorate(net, level="O2", excluded_layers=[3])),
        (unamp.NotExpressible, "master_grad", lambda: unamp.decorate(net, level="O2", master_grad=True)),
        (unamp.NotExpressible, "save_dtype", lambda: unamp.decorate(net, level="O2", save_dtype="float32")),
    ]:
        with pytest.raises(error, match=match):
            call()
        assert {each.dtype for each in net.get_parameters()} == {ms.float32}
        assert type(begun) is nn.SGD
    unamp.decorate(net, optimizer, "O2", save_dtype="float16")
    assert net[0].weight.dtype == ms.float16
