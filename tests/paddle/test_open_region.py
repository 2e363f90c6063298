"""Training inside one region that stays open computes with the current parameters."""

from contextlib import nullcontext
from functools import partial

import numpy as np
import paddle
import pytest

import unamp
from unamp import Policy, policy_region

STEPS = 300


def regression():
    """Return a network, with inputs and targets that it can learn."""
    paddle.seed(7)
    np.random.seed(7)
    network = paddle.nn.Sequential(
        paddle.nn.Linear(8, 16), paddle.nn.Tanh(), paddle.nn.Linear(16, 1)
    )
    x = np.random.rand(64, 8).astype("float32")
    y = (x @ np.linspace(-1, 1, 8, dtype="float32")[:, None]) ** 2 + 1
    return network, paddle.to_tensor(x), paddle.to_tensor(y)


def loss_of(network, x, y):
    return (network(x).astype("float32") - y).square().mean()


def by_hand(network):
    @paddle.no_grad()
    def step():
        for parameter in network.parameters():
            parameter.subtract_(0.05 * parameter.grad)

    return step


def by_set_value(network):
    def step():
        for parameter in network.parameters():
            parameter.set_value(parameter.numpy() - 0.05 * parameter.grad.numpy())

    return step


def by_loading(network):
    def step():
        state = {n: p.numpy() - 0.05 * p.grad.numpy() for n, p in network.named_parameters()}
        network.set_state_dict(state)

    return step


STEPPING = {
    "SGD": lambda network: paddle.optimizer.SGD(0.05, parameters=network.parameters()).step,
    "Momentum": lambda network: (
        paddle.optimizer.Momentum(0.01, parameters=network.parameters()).step
    ),
    "Adam": lambda network: paddle.optimizer.Adam(0.01, parameters=network.parameters()).step,
    "by hand": by_hand,
    "set_value": by_set_value,
    "set_state_dict": by_loading,
}


def trained(stepping, policy, compiled=False):
    """Return the losses of a training inside one region, and the final loss outside of it."""
    network, x, y = regression()
    step, function = STEPPING[stepping](network), loss_of
    if compiled:
        static = paddle.jit.to_static(network, full_graph=True)
        function = lambda network, x, y: loss_of(static, x, y)  # noqa: E731
    with policy_region(policy):
        losses = []
        for _ in range(STEPS):
            loss = function(network, x, y)
            loss.backward()
            step()
            network.clear_gradients()
            losses.append(float(loss))
    return losses, float(loss_of(network, x, y))


def by_rounding(loss, low):
    """Return the error that roundings can cause in a mean of squares.

    The predictions have a magnitude of 2 and are rounded four times.
    """
    error = 4 * 2 * {"float16": 2**-11, "bfloat16": 2**-8}[low]
    return 2 * loss**0.5 * error + error**2


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("low", ["float16", "bfloat16"])
@pytest.mark.parametrize("stepping", STEPPING)
def test_it_comes_to_the_loss_of_float32(stepping, low, level):
    exact, final = trained(stepping, Policy("O0"))
    losses, end = trained(stepping, Policy(level, low))
    assert exact[-1] < exact[0] / 8
    assert abs(end - final) < by_rounding(final, low)
    assert abs(losses[-1] - exact[-1]) < by_rounding(final, low)


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
@pytest.mark.parametrize("stepping", ["SGD", "set_value"])
def test_it_is_the_same_in_a_compiled_program(stepping, low):
    np.testing.assert_array_equal(
        trained(stepping, Policy("O1", low), compiled=True)[0],
        trained(stepping, Policy("O1", low))[0],
    )


def test_it_is_the_same_with_a_region_for_each_step():
    network, x, y = regression()
    optimizer = paddle.optimizer.Adam(0.01, parameters=network.parameters())
    losses = []
    for _ in range(STEPS):
        with policy_region(Policy("O1", "bfloat16")):
            loss = loss_of(network, x, y)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    assert losses == trained("Adam", Policy("O1", "bfloat16"))[0]


def test_it_is_right_with_a_loss_scale():
    network, x, y = regression()
    optimizer, scaler = (
        paddle.optimizer.SGD(0.05, parameters=network.parameters()),
        unamp.GradScaler(2.0**12),
    )
    with unamp.autocast(dtype="float16"):
        for _ in range(STEPS):
            scaler.scale(loss_of(network, x, y)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.clear_grad()
    final = trained("SGD", Policy("O0"))[1]
    assert abs(float(loss_of(network, x, y)) - final) < by_rounding(final, "float16")


def changed_by_set_value(parameter):
    parameter.set_value(np.full(parameter.shape, 2.0, "float32"))


def changed_in_place(parameter):
    with paddle.no_grad():
        parameter.fill_(2.0)


def changed_by_copy(parameter):
    parameter.copy_(paddle.full(parameter.shape, 2.0), True)


def changed_in_its_memory(parameter):
    parameter.get_tensor().set(np.full(parameter.shape, 2.0, "float32"), paddle.CPUPlace())


def changed_by_data(parameter):
    parameter.data = paddle.full(parameter.shape, 2.0)


@pytest.mark.parametrize(
    "change",
    [
        changed_by_set_value,
        changed_in_place,
        changed_by_copy,
        changed_in_its_memory,
        changed_by_data,
    ],
)
@pytest.mark.parametrize("low", ["float16", "bfloat16"])
def test_a_change_between_two_uses_is_seen(change, low):
    linear, x = paddle.nn.Linear(4, 4, bias_attr=False), paddle.ones([1, 4])
    with policy_region(Policy("O1", low)):
        linear(x)
        change(linear.weight)
        assert linear(x).astype("float32").tolist() == [[8.0] * 4]


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("search", [None, "strong_wolfe"])
@pytest.mark.parametrize("kind", [paddle.optimizer.LBFGS, paddle.incubate.optimizer.LBFGS])
def test_the_closure_of_lbfgs_is_under_the_policy_and_its_step_is_not(kind, search, level):
    def stepped(around, inside):
        network, x, y = regression()
        optimizer = kind(0.5, max_iter=4, parameters=network.parameters(), line_search_fn=search)

        def closure():
            optimizer.clear_grad()
            with inside():
                predicted = network(x)
                seen.add(predicted.dtype)
                loss = (predicted.astype("float32") - y).square().mean()
            loss.backward()
            return loss

        seen = set()
        with around():
            for _ in range(2):
                optimizer.step(closure)
        return [parameter.numpy() for parameter in network.parameters()], seen

    region = partial(policy_region, Policy(level, "bfloat16"))
    known, low = stepped(nullcontext, region)
    found, seen = stepped(region, nullcontext)
    assert seen == low == {paddle.bfloat16}
    for one, other in zip(known, found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("low", ["float16", "bfloat16"])
@pytest.mark.parametrize("method", ["bfgs", "lbfgs"])
def test_a_function_is_minimized_under_the_policy_and_the_search_is_not(method, low, level):
    factor, target = paddle.diag(paddle.arange(1.0, 5.0)), paddle.arange(4.0) * 100
    minimize = getattr(paddle.incubate.optimizer.functional, f"minimize_{method}")

    def minimized(around, inside):
        def value(position):
            with inside():
                predicted = paddle.matmul(factor, position)
                seen.add(predicted.dtype)
                return (predicted - target).square().sum()

        def objective(position):
            return value(position).astype("float32")

        seen = set()
        with around():
            found = minimize(value if around is region else objective, paddle.ones([4]))
        return found, seen

    region = partial(policy_region, Policy(level, low))
    known, dtypes = minimized(nullcontext, region)
    found, seen = minimized(region, nullcontext)
    assert seen == dtypes == {getattr(paddle, low)}
    for one, other in zip(known, found, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)
