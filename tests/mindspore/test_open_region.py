"""Training inside one region that stays open computes with the weights of the last step."""

from contextlib import nullcontext

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from mindspore.experimental import optim

import unamp
from unamp import Policy, policy_region

F32 = mindspore.float32
STEPS = 5


class Line(nn.Cell):
    def __init__(self):
        super().__init__()
        self.one = nn.Dense(1, 1, weight_init=Tensor([[0.0]], F32), bias_init=Tensor([0.0], F32))

    def construct(self, x):
        return self.one(x)


X = Tensor(np.linspace(-1, 1, 32, dtype="float32").reshape(32, 1))
Y = X * 3 - 1


def _by_assignment(net):
    def update(gradients):
        for parameter, gradient in zip(net.trainable_params(), gradients, strict=True):
            ops.assign(parameter, parameter - 0.1 * gradient)

    return update


def _by_set_data(net):
    def update(gradients):
        for parameter, gradient in zip(net.trainable_params(), gradients, strict=True):
            parameter.set_data(Tensor(parameter.asnumpy() - 0.1 * gradient.asnumpy()))

    return update


def _by_loading(net):
    def update(gradients):
        named = zip(net.trainable_params(), gradients, strict=True)
        new = {
            p.name: mindspore.Parameter(Tensor(p.asnumpy() - 0.1 * g.asnumpy()), p.name)
            for p, g in named
        }
        mindspore.load_param_into_net(net, new)

    return update


UPDATES = {
    "SGD": lambda net: nn.SGD(net.trainable_params(), 0.1),
    "Momentum": lambda net: nn.Momentum(net.trainable_params(), 0.05, 0.5),
    "Adam": lambda net: nn.Adam(net.trainable_params(), 0.05),
    "experimental": lambda net: mindspore.experimental.optim.SGD(net.trainable_params(), 0.1),
    "assign": _by_assignment,
    "set_data": _by_set_data,
    "load_param_into_net": _by_loading,
}


CASES = [
    *((name, False, "bfloat16") for name in UPDATES),
    # MindSpore's graphs do not see `set_data`
    *((name, True, "bfloat16") for name in ("SGD", "assign")),
    ("SGD", False, "float16"),
    ("SGD", True, "float16"),
]


def trained(name, compiled, dtype, open_long):
    """Return the weights after each step, with one region around all steps or around each."""
    net = Line()
    update = UPDATES[name](net)
    scaler = unamp.GradScaler(1024.0, enabled=dtype == "float16")

    def forward(x, y):
        return ((net(x) - y) ** 2).mean()

    run = mindspore.jit(forward) if compiled else forward
    step = mindspore.value_and_grad(
        lambda x, y: scaler.scale(run(x, y)), None, net.trainable_params()
    )
    weights = []
    with unamp.autocast(dtype=dtype) if open_long else nullcontext():
        for _ in range(STEPS):
            with nullcontext() if open_long else unamp.autocast(dtype=dtype):
                _, gradients = step(X, Y)
            if isinstance(update, (nn.Optimizer, mindspore.experimental.optim.Optimizer)):
                scaler.step(update, gradients=gradients)
                scaler.update()
            else:
                update([gradient * (1 / scaler.get_scale()) for gradient in gradients])
            weights.append([parameter.asnumpy().item() for parameter in net.trainable_params()])
    return weights


@pytest.mark.parametrize(("name", "compiled", "dtype"), CASES)
def test_training_inside_one_open_region_follows_the_weights(name, compiled, dtype):
    weights = trained(name, compiled, dtype, open_long=True)
    assert weights == trained(name, compiled, dtype, open_long=False)
    off = [abs(3 - weight) + abs(-1 - bias) for weight, bias in weights]
    assert off == sorted(off, reverse=True)
    assert len(set(off)) == STEPS  # the network learns at every step


class OutOfPlace(optim.Optimizer):
    """A user's optimizer, made of operations that a policy would change."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    def construct(self, gradients):
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            ops.assign(parameter, parameter - 0.1 * (gradient * 0.37 + ops.sin(parameter)))
        return True


class Derived(optim.AdamW):
    """A user's optimizer that computes before the step of its base."""

    def construct(self, gradients):
        return super().construct(tuple(gradient * 0.37 for gradient in gradients))


@pytest.mark.parametrize("level", ["O2", "O3"])
@pytest.mark.parametrize(
    "make", [OutOfPlace, Derived, optim.AdamW, optim.NAdam, lambda ps: nn.Adam(ps, 0.1)]
)
def test_a_step_in_a_region_comes_to_the_same_bits_as_outside(make, level):
    def stepped(around):
        numbers = np.random.default_rng(0)
        parameter = mindspore.Parameter(Tensor(numbers.random((6, 4), np.float32)), name="weight")
        optimizer, ended = make([parameter]), []
        for _ in range(3):
            gradient = Tensor(numbers.random((6, 4), np.float32))
            with around():
                optimizer((gradient,))
                ended.append((gradient @ gradient.T).dtype)
        return parameter.asnumpy(), ended

    low = policy_region(Policy(level, "bfloat16"))
    found, dtypes = stepped(lambda: low)
    assert dtypes == [mindspore.bfloat16] * 3
    np.testing.assert_array_equal(found, stepped(nullcontext)[0])


def test_a_step_that_raises_leaves_the_policy_in_force():
    class Failing(OutOfPlace):
        def construct(self, gradients):
            raise ArithmeticError

    before = vars(optim.Optimizer).get("__call__"), nn.Optimizer.__call__
    optimizer, ones = Failing([mindspore.Parameter(Tensor([1.0]), name="weight")]), Tensor([[1.0]])
    with policy_region(Policy("O2", "bfloat16")):
        with pytest.raises(ArithmeticError):
            optimizer((ones,))
        assert (ones @ ones).dtype == mindspore.bfloat16
    assert (vars(optim.Optimizer).get("__call__"), nn.Optimizer.__call__) == before


SCHEDULES = {
    "StepLR": lambda optimizer: optim.lr_scheduler.StepLR(optimizer, 2, 0.3),
    "CosineAnnealingWarmRestarts": lambda optimizer: optim.lr_scheduler.CosineAnnealingWarmRestarts(
        optimizer, 5
    ),
    "ReduceLROnPlateau": lambda optimizer: optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=0.3, patience=0
    ),
    "SequentialLR": lambda optimizer: optim.lr_scheduler.SequentialLR(
        optimizer, [optim.lr_scheduler.ExponentialLR(optimizer, 0.93) for _ in range(2)], [2]
    ),
}


@pytest.mark.parametrize("level", ["O2", "O3"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_scheduler_makes_the_same_learning_rates_in_a_region(name, level):
    def rates(around):
        optimizer = optim.SGD([mindspore.Parameter(Tensor([1.0]), name="weight")], lr=0.0123)
        with around:
            scheduler, found = SCHEDULES[name](optimizer), []
            for metric in (70000.0, 70001.0, 70002.0):
                scheduler.step(*([Tensor(metric)] if name == "ReduceLROnPlateau" else []))
                found.append(optimizer.param_groups[0]["lr"].asnumpy().item())
        return found

    assert len(set(rates(nullcontext()))) > 1
    assert rates(policy_region(Policy(level, "float16"))) == rates(nullcontext())


class FromThatStep(nn.learning_rate_schedule.LearningRateSchedule):
    """A user's schedule, made of operations that a policy would change."""

    def construct(self, global_step):
        return 0.1 - global_step.astype(F32) * 1e-6


@pytest.mark.parametrize("level", ["O2", "O3"])
@pytest.mark.parametrize("compiled", [False, True], ids=["PyNative", "graph"])
@pytest.mark.parametrize("make", [FromThatStep, lambda: nn.CosineDecayLR(1e-6, 0.1, 70000)])
def test_a_learning_rate_that_a_program_asks_for_is_float32(make, compiled, level):
    schedule = make()
    optimizer = nn.AdamWeightDecay([mindspore.Parameter(Tensor([1.0]), name="weight")], schedule)
    optimizer.global_step.set_data(Tensor([66000], mindspore.int32))

    def asked(step):
        return optimizer.get_lr(), schedule(step)

    step = Tensor(66000, mindspore.int32)
    expected = [rate.asnumpy().item() for rate in asked(step)]
    with policy_region(Policy(level, "float16")):
        found = (mindspore.jit(asked) if compiled else asked)(step)
    assert {rate.dtype for rate in found} == {F32}
    np.testing.assert_allclose([rate.asnumpy().item() for rate in found], expected, rtol=1e-6)


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_a_scheduler_in_a_graph_makes_the_same_learning_rates(level):
    def rate(around):
        optimizer = optim.SGD([mindspore.Parameter(Tensor([1.0]), name="weight")], lr=0.0123)
        scheduler = optim.lr_scheduler.ExponentialLR(optimizer, 0.93)

        @mindspore.jit
        def step(x):
            scheduler.step()
            return x @ x

        with around:
            ended = step(Tensor([[1.0]])).dtype
        return ended, optimizer.param_groups[0]["lr"].asnumpy().item()

    assert rate(policy_region(Policy(level, "float16"))) == (
        mindspore.float16,
        rate(nullcontext())[1],
    )
