"""`unamp.decorate` on PaddlePaddle: low parameters, float32 master weights, on the CPU too."""

import copy
import functools
import math

import numpy as np
import paddle
import pytest
from paddle import nn
from unamp_paddle.masters import masters_of

import unamp

LOW = {"float16": paddle.float16, "bfloat16": paddle.bfloat16}
F32 = paddle.float32


def mlp():
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))


def conv():
    return nn.Sequential(
        nn.Unflatten(1, [1, 4, 4]), nn.Conv2D(1, 8, 3, padding=1), nn.BatchNorm2D(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4)
    )


def transformer():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
    return nn.Sequential(nn.Unflatten(1, [2, 8]), layer, nn.Flatten(), nn.Linear(16, 4))


NETWORKS = {"mlp": mlp, "conv": conv, "transformer": transformer}


def made(kind="mlp"):
    paddle.seed(7)
    return NETWORKS[kind]()


def batch(step):
    """Inputs and classes, one in eight of them wrong: the loss has a floor."""
    random = np.random.default_rng(step)
    x = random.standard_normal((32, 16), dtype="float32")
    y = (x[:, :4] + x[:, 4:8] * x[:, 8:12]).argmax(1)
    return paddle.to_tensor(x), paddle.to_tensor(np.where(np.arange(32) % 8 == 0, random.integers(0, 4, 32), y))


def loss_of(network, step, *, overflow=False, **policy):
    x, y = batch(step)
    with unamp.autocast(**policy):
        loss = nn.functional.cross_entropy(network(x), y)
        return loss * math.inf if overflow else loss


def evaluated(network, **policy):
    network.eval()
    with paddle.no_grad():
        return sum(float(loss_of(network, 1000 + step, **policy).astype("float32")) for step in range(16)) / 16


def numbers(tensor):
    return tensor.detach().astype("float32").numpy()


def trained(network):
    return [parameter for parameter in network.parameters() if not parameter.stop_gradient]


def values(network):
    """Parameters and statistics."""
    return [numbers(parameter) for parameter in network.parameters()]


def weights(optimizer, network):
    """Return what the optimizer steps, in float32: the master weights where it has some."""
    masters = optimizer._master_weights
    return [numbers(masters.get(parameter.name, parameter)) for parameter in trained(network)]


def rounded(arrays, dtype):
    return [numbers(paddle.to_tensor(each).astype(dtype)) for each in arrays]


def same(first, second):
    return all(np.array_equal(*pair) for pair in zip(first, second, strict=True))


def sgd(network, rate=0.1, **kwargs):
    return paddle.optimizer.SGD(rate, parameters=network.parameters(), **kwargs)


def give(network, gradients):
    """Put float32 gradients on float32 parameters, to the bit."""
    for parameter, gradient in zip(trained(network), gradients, strict=True):
        (parameter * paddle.to_tensor(gradient)).sum().backward()


@functools.cache
def float32_loss(kind):
    network = made(kind)
    optimizer = paddle.optimizer.AdamW(0.01, parameters=network.parameters())
    for step in range(200):
        loss_of(network, step, enabled=False).backward()
        optimizer.step()
        optimizer.clear_grad()
    return evaluated(network, enabled=False)


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


def renamed(state, names):
    """An optimizer's state for a network whose parameters have other names, as a second one in a process has."""

    def name(key):
        old = next((old for old in names if key == old or key.startswith(f"{old}_")), None)
        return key if old is None else names[old] + key.removeprefix(old)

    masters = state.get("master_weights", {})
    state = {name(key): value for key, value in state.items() if key != "master_weights"}
    return state | {"master_weights": {name(key): value for key, value in masters.items()}}


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


class Inner(nn.Layer):
    def __init__(self):
        super().__init__()
        self.norms = nn.LayerList([nn.BatchNorm1D(2), nn.SyncBatchNorm(2), nn.BatchNorm(2), nn.InstanceNorm1D(2)])
        self.norms.extend([nn.LayerNorm(2), nn.GroupNorm(1, 2)])
        self.deep = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.Conv1D(2, 2, 1))
        self.exact = self.create_parameter([2], dtype="float64")


def low(network, **kwargs):
    unamp.decorate(network, level="O2", dtype="bfloat16", **kwargs)
    return {name.rpartition(".")[0] for name, p in network.named_parameters() if p.dtype == paddle.bfloat16}


def test_what_stays_in_float32():
    assert low(Inner()) == {"norms.3", "norms.4", "norms.5", "deep.0.0", "deep.1"}
    assert low(Inner(), excluded_layers=nn.LayerNorm) == {"norms.3", "norms.5", "deep.0.0", "deep.1"}
    network = Inner()
    assert low(network, excluded_layers=[network.deep[0], nn.Conv1D]) == {"norms.3", "norms.4", "norms.5"}
    assert low(network := Inner(), excluded_layers=network) == set()
    assert network.exact.dtype == paddle.float64


class Tied(nn.Layer):
    def __init__(self):
        super().__init__()
        self.embedding, self.frozen = nn.Embedding(5, 4), nn.Linear(4, 4)
        self.head = nn.Embedding(5, 4)
        self.head.weight = self.embedding.weight
        for parameter in self.frozen.parameters():
            parameter.stop_gradient = True

    def forward(self, x):
        return paddle.matmul(self.frozen(self.embedding(x)), self.head.weight, transpose_y=True)


def test_tied_and_frozen_parameters():
    network = Tied()
    optimizer, exact = sgd(network), numbers(network.embedding.weight)
    unamp.decorate(network, optimizer, "O2")
    assert network.head.weight is network.embedding.weight
    assert network.frozen.weight.dtype == paddle.float16
    assert list(optimizer._master_weights) == [network.embedding.weight.name]
    with unamp.autocast(dtype="float16", level="O2"):
        network(paddle.arange(5)).astype("float32").square().sum().backward()
    frozen, moved = values(network.frozen), np.float32(0.1) * numbers(network.head.weight.grad)
    optimizer.step()
    np.testing.assert_allclose(weights(optimizer, network)[0], exact - moved, rtol=1e-6, atol=1e-7)
    assert same(frozen, values(network.frozen))
    kept = Tied()
    unamp.decorate(kept, level="O2", excluded_layers=kept.head)
    assert kept.embedding.weight.dtype == F32


def test_several_networks_and_several_optimizers():
    first, second = made(), made("conv")
    others = [p for layer in (*first[1:], second) for p in layer.parameters()]
    shared = [sgd(first[0]), paddle.optimizer.Adam(0.1, parameters=others)]
    models, optimizers = unamp.decorate([first, second], shared, "O2", "bfloat16")
    assert models == [first, second]
    assert optimizers is shared
    scaler, before = unamp.GradScaler(64.0), values(first)
    for loss in scaler.scale([loss_of(each, 0, level="O2", dtype="bfloat16") for each in models]):
        loss.backward()
    spoilt = paddle.full([16, 32], math.nan, "bfloat16")
    first[0].weight._grad_ivar().get_tensor()._share_data_with(spoilt.get_tensor())
    assert [scaler.step(each) for each in optimizers] == [False, True]
    assert [np.array_equal(*pair) for pair in zip(before, values(first), strict=True)][:3] == [True, True, False]


def test_two_optimizers_of_one_parameter_follow_each_other():
    network = nn.Linear(3, 2)
    exact, both = weights(sgd(network), network), [sgd(network), sgd(network, 0.01)]
    unamp.decorate(network, both, "O2")
    for parameter in network.parameters():
        parameter.astype("float32").sum().backward()
    for _ in range(3):
        for optimizer, rate in zip(both, (0.1, 0.01), strict=True):
            optimizer.step()
            exact = [weight - np.float32(rate) for weight in exact]
    for weight, expected in zip(weights(both[0], network), exact, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-6, atol=1e-7)


def test_a_changed_parameter_takes_its_master_weight_along():
    network = nn.Linear(5, 3)
    optimizer = sgd(network, 0.0)
    unamp.decorate(network, optimizer, "O2")
    before, changed = weights(optimizer, network)[0], numbers(network.weight)
    changed[0, 0] = 0.5
    network.weight.set_value(changed.astype("float16"))
    saved = optimizer.state_dict()["master_weights"][network.weight.name].numpy()
    assert saved[0, 0] == 0.5
    assert np.array_equal(saved.flat[1:], before.flat[1:])
    other = nn.Linear(5, 3)
    network.set_state_dict(other.state_dict())
    optimizer.step()
    assert same(values(network), rounded(values(other), "float16"))


def test_copies_and_pickles_of_networks(pickled):
    network = made("conv")
    unamp.decorate(network, level="O2", save_dtype="float32")
    for other in (copy.deepcopy(network), *pickled(network)):
        assert type(other) is type(network)
        assert [p.dtype for p in other.parameters()] == [p.dtype for p in network.parameters()]
        assert {value.dtype for value in other.state_dict().values()} == {F32}
        other[1].weight.set_value(np.zeros(other[1].weight.shape, "float16"))
        other.set_state_dict(network.state_dict())
        assert same(values(other), values(network))


@pytest.mark.parametrize("save_dtype", [None, "float32"])
def test_programs_are_saved(tmp_path, save_dtype):
    network, x = made("conv"), paddle.rand([2, 16])
    unamp.decorate(network, level="O2", dtype="float16", save_dtype=save_dtype)
    network.eval()
    with unamp.autocast(level="O2", dtype="float16"):
        expected = network(x)
        paddle.jit.save(network, str(tmp_path / "network"), input_spec=[paddle.static.InputSpec([None, 16], "float32")])
    found = paddle.jit.load(str(tmp_path / "network"))(x)
    np.testing.assert_allclose(found.astype("float32").numpy(), expected.astype("float32").numpy(), rtol=1e-2, atol=1e-2)
    assert {value.dtype for value in network.state_dict().values()} == ({paddle.float16, F32} if save_dtype is None else {F32})


@pytest.mark.parametrize("save_dtype", ["float16", "bfloat16", "float32", "float64"])
def test_what_is_saved_of_a_network(save_dtype):
    network = nn.LayerDict({"body": made("conv"), "other": nn.Linear(2, 2)})
    unamp.decorate(network["body"], level="O2", save_dtype=save_dtype)
    for name, value in network.state_dict().items():
        kept = "other" in name or name.endswith(("_mean", "_variance"))
        assert value.dtype == (F32 if kept else getattr(paddle, save_dtype)), name
    body = network["body"]
    before, state = values(body), {name: value.clone() for name, value in body.state_dict().items()}
    for parameter in body.parameters():
        parameter.set_value(paddle.zeros(parameter.shape, parameter.dtype))
    arrays = {name: value.numpy() for name, value in state.items()}
    for saved in (state, arrays) if save_dtype != "bfloat16" else (state,):  # NumPy has no bfloat16
        body.set_state_dict(saved)
        assert save_dtype == "bfloat16" or same(before, values(body))  # it has fewer digits
    assert {p.dtype for p in body.parameters()} == {paddle.float16, F32}


def test_a_checkpoint_of_float32_training_can_be_continued():
    network, low = made(), made()
    optimizer, its = [paddle.optimizer.Adam(0.01, parameters=each.parameters()) for each in (network, low)]
    loss_of(network, 0, enabled=False).backward()
    optimizer.step()
    unamp.decorate(low, its, "O2")
    names = {old.name: new.name for old, new in zip(network.parameters(), low.parameters(), strict=True)}
    low.set_state_dict(network.state_dict())
    its.set_state_dict(renamed(optimizer.state_dict(), names))
    assert same(values(low), rounded(values(network), "float16"))
    loss_of(low, 0, level="O2", dtype="float16").backward()
    its.step()
    second = its._accumulators["beta1_pow_acc"][low[0].weight.name]
    assert second.item() == pytest.approx(0.9**3)


def test_a_bad_checkpoint_changes_nothing():
    network = made()
    optimizer = paddle.optimizer.Momentum(0.1, parameters=network.parameters())
    unamp.decorate(network, optimizer, "O2")
    loss_of(network, 0, level="O2", dtype="float16").backward()
    optimizer.step()
    name, before = network[0].bias.name, weights(optimizer, network)
    for wrong, said in (
        ({name: paddle.zeros([3])}, r"has the shape \[3\], the parameter has \[32\]"),
        ({"w": 0}, "no parameter w"),
    ):
        with pytest.raises(ValueError, match=said):
            optimizer.set_state_dict(optimizer.state_dict() | {"master_weights": wrong})
    assert same(before, weights(optimizer, network))
    assert same(values(network), rounded(before, "float16"))


def test_sparse_gradients():
    network = nn.LayerList([nn.Embedding(5, 3, sparse=True), nn.Linear(3, 1)])
    optimizer = sgd(network, 1.0)
    unamp.decorate(network, optimizer, "O2")
    assert [p.dtype for p in network.parameters()] == [F32, paddle.float16, paddle.float16]  # nothing on the CPU takes low ones
    before, scaler = weights(optimizer, network), unamp.GradScaler(16.0)
    scaler.scale(network[0](paddle.to_tensor([1, 1, 2])).sum()).backward()
    assert scaler.step(optimizer) is True
    moved = before[0] - weights(optimizer, network)[0]
    np.testing.assert_allclose(moved, np.outer([0, 2, 1, 0, 0], [1, 1, 1]), rtol=1e-6, atol=1e-6)


def _low_already():
    network = made()
    network[3].to(dtype="float16")
    return network, sgd(network)


def _begun():
    network = made()
    optimizer = paddle.optimizer.Adam(0.1, parameters=network.parameters())
    loss_of(network, 0, enabled=False).backward()
    optimizer.step()
    return network, optimizer


def _loaded_wrongly():
    network = made()
    optimizer = sgd(network)
    optimizer.set_state_dict({"master_weights": {network[0].weight.name: paddle.zeros([3])}})
    return network, optimizer


def _decorated_already():
    optimizer = sgd(made())
    unamp.decorate(made(), optimizer, "O2")
    return made(), optimizer


REFUSED = {
    "parameter 3.weight is float16 already": _low_already,
    "has taken steps": _begun,
    r"the loaded master weight of .* has the shape \[3\]": _loaded_wrongly,
    "is decorated already": _decorated_already,
    "decorate the layer itself": lambda: (paddle.DataParallel(made()), sgd(made())),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_is_refused_is_left_as_it_was(said):
    network, optimizer = REFUSED[said]()
    other, its = made(), sgd(made())
    before, kinds = values(network), (type(its), type(optimizer), type(other))
    with pytest.raises(ValueError, match=said):
        unamp.decorate([other, network], [its, optimizer], "O2")
    assert {p.dtype for p in other.parameters()} == {F32}
    assert same(before, values(network))
    assert (type(its), type(optimizer), type(other)) == kinds
    assert masters_of(its) is None


@pytest.mark.parametrize("excluded", [paddle.tanh, int, "Linear"])
def test_excluded_layers_are_layers(excluded):
    network = made()
    with pytest.raises(TypeError, match=r"excluded_layers takes paddle.nn.Layers and classes of them"):
        unamp.decorate(network, level="O2", excluded_layers=[nn.LayerNorm, excluded])
    assert {p.dtype for p in network.parameters()} == {F32}


def test_other_optimizers_are_not_affected():
    network, plain = made(), sgd(made())
    step = paddle.optimizer.SGD.step
    unamp.decorate(network, optimizer := sgd(network), "O2")
    assert paddle.optimizer.SGD.step is step
    assert type(plain) is paddle.optimizer.SGD
    assert type(optimizer).__name__ == "SGD"
    assert type(network).__name__ == "Sequential"
