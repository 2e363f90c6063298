"""The scaler works on Paddle's CPU, where Paddle's own is switched off."""

import math
import socket
import sys
from pathlib import Path

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import said_by_ranks, skipped_together

import unamp


def network():
    paddle.seed(7)
    return paddle.nn.Sequential(
        paddle.nn.Linear(8, 16), paddle.nn.LayerNorm(16), paddle.nn.ReLU(), paddle.nn.Linear(16, 1)
    )


def loss_of(net, step, *, overflow=False, **policy):
    x = np.random.default_rng(step).standard_normal((16, 8), dtype="float32")
    y = paddle.to_tensor(np.sin(x.sum(1, keepdims=True)))
    x = paddle.to_tensor(x * math.inf if overflow else x)
    with unamp.auto_cast(**{"dtype": "float16"} | policy):
        return paddle.nn.functional.mse_loss(net(x), y)


def adamw(net, **kwargs):
    return paddle.optimizer.AdamW(0.01, parameters=net.parameters(), **kwargs)


def values(net):
    return [parameter.numpy() for parameter in net.parameters()]


def same(first, second):
    return all(np.array_equal(*pair) for pair in zip(first, second, strict=True))


def minimize(scaler, optimizer, loss):
    scaled = scaler.scale(loss)
    scaled.backward()
    scaler.minimize(optimizer, scaled)
    optimizer.clear_grad()


def spoil(parameter, place, bad):
    """Set one number of a parameter's gradient to `bad`."""
    gradient = parameter._grad_ivar()
    numbers = gradient.numpy()
    numbers.flat[place] = bad
    gradient.get_tensor().set(numbers, paddle.CPUPlace())


class Reference:
    """The rules that Paddle documents for `paddle.amp.GradScaler`.

    Products are rounded to float32, as in torch.
    """

    def __init__(self, scale, grow, back_off, grow_every, back_off_every):
        self.scale, self.factors, self.every = (
            np.float32(scale),
            (grow, back_off),
            (grow_every, back_off_every),
        )
        self.good = self.bad = 0

    def update(self, overflow):
        self.good, self.bad = (0, self.bad + 1) if overflow else (self.good + 1, 0)
        with np.errstate(over="ignore"):
            if self.bad == self.every[1]:
                self.scale, self.bad = np.float32(np.float64(self.scale) * self.factors[1]), 0
            if self.good == self.every[0]:
                grown = np.float32(np.float64(self.scale) * self.factors[0])
                self.scale, self.good = (grown if np.isfinite(grown) else self.scale), 0


@settings(deadline=None, max_examples=60)
@given(
    events=st.lists(st.sampled_from(["good", "bad", "unscaled", "minimized"]), max_size=12),
    init_scale=st.floats(2.0**-20, 2.0**100, width=32),
    growth_factor=st.floats(1.0, 1e6, exclude_min=True),
    backoff_factor=st.floats(1e-3, 1.0, exclude_max=True),
    growth_interval=st.integers(1, 4),
    backoff_interval=st.integers(1, 3),
)
def test_after_any_sequence_the_scale_is_the_references(events, backoff_interval, **rules):
    reference = Reference(*rules.values(), backoff_interval)
    scaler = unamp.GradScaler(**rules, backoff_interval=backoff_interval)
    w = paddle.create_parameter([3], "float32")
    optimizer = paddle.optimizer.SGD(0.125, parameters=[w])
    for event in events:
        before = w.numpy()
        scaled = scaler.scale((w * (math.inf if event == "bad" else 0.25)).sum())
        scaled.backward()
        if event == "unscaled":
            scaler.unscale_(optimizer)
            np.testing.assert_allclose(w.grad.numpy(), 0.25, rtol=1e-6)
        if event == "minimized":
            scaler.minimize(optimizer, scaled)
        else:
            assert scaler.step(optimizer) is (event != "bad")
            scaler.update()
        optimizer.clear_grad()
        reference.update(event == "bad")
        state = scaler.state_dict("paddle")
        assert (state["scale"], state["incr_count"], state["decr_count"]) == (
            [reference.scale],
            reference.good,
            reference.bad,
        )
        np.testing.assert_allclose(
            w.numpy(), before - (0 if event == "bad" else 0.03125), rtol=1e-5, atol=1e-6
        )
    assert scaler.skipped == events.count("bad")


def test_clipping_sees_unscaled_gradients():
    gradients = []
    for scaler in (unamp.GradScaler(2.0**14), unamp.GradScaler(enabled=False)):
        net = network()
        optimizer = adamw(net)
        scaler.scale(loss_of(net, 0, enable=False)).backward()
        scaler.unscale_(optimizer)
        norm = paddle.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        gradients.append([float(norm), *(p.grad.numpy() for p in net.parameters())])
    for scaled, plain in zip(*gradients, strict=True):
        np.testing.assert_allclose(scaled, plain, rtol=1e-6, atol=1e-9)


def test_accumulating_over_several_losses_and_optimizers():
    net = network()
    first = paddle.optimizer.SGD(0.1, parameters=net[0].parameters())
    second = paddle.optimizer.SGD(
        0.1, parameters=[{"params": net[3].parameters(), "learning_rate": 0.5}]
    )
    scaler, before = unamp.GradScaler(256.0), values(net)
    for loss in scaler.scale([loss_of(net, step) for step in range(2)]):
        loss.backward()
    spoil(net[0].weight, 0, math.nan)
    assert scaler.step(first) is False
    assert scaler.step(second) is True
    scaler.update()
    after = values(net)
    assert (scaler.get_scale(), scaler.skipped) == (128.0, 1)
    assert same(before[:4], after[:4])
    assert not same(before[4:], after[4:])


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("place", [0, -1])
def test_one_number_is_enough_and_leaves_the_others_unscaled(bad, place):
    net = network()
    optimizer = adamw(net)
    scaler = unamp.GradScaler(8.0)
    scaler.scale(sum(p.sum() for p in net.parameters()) * 3.0).backward()
    spoil(net[3].weight, place, bad)
    before = values(net)
    assert scaler.step(optimizer) is False
    assert same(before, values(net))
    # Paddle's own scaler zeroes the later gradients
    assert [p.grad.flatten()[1 % p.size].item() for p in net.parameters()] == [3.0] * 6
    assert scaler.first_nonfinite(optimizer) == net[3].weight.name
    assert scaler.first_nonfinite(optimizer, net) == "3.weight"


def test_large_finite_gradients_are_no_overflow():
    w = paddle.create_parameter([3], "float32")
    optimizer = paddle.optimizer.SGD(0.0, parameters=[w])
    scaler = unamp.GradScaler(2.0**10)
    scaler.scale((w * 1e30).sum()).backward()
    assert scaler.step(optimizer) is True


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_gradients_of_other_dtypes(dtype):
    w = paddle.create_parameter([3], dtype, default_initializer=paddle.nn.initializer.Constant(1.0))
    optimizer = paddle.optimizer.SGD(1.0, parameters=[w])
    scaler = unamp.GradScaler(8.0)
    for factor, ran in ((0.5, True), (math.nan, False)):
        scaler.scale((w.astype("float32") * factor).sum()).backward()
        assert scaler.step(optimizer) is ran
        optimizer.clear_grad()
        scaler.update()
    assert w.astype("float32").numpy().tolist() == [0.5] * 3


def test_low_losses_are_scaled_in_float32():
    loss = paddle.to_tensor(3.0, dtype="float16", stop_gradient=False)
    scaled = unamp.GradScaler().scale(loss)
    assert (scaled.dtype, scaled.shape, float(scaled)) == (paddle.float32, [], 3 * 65536.0)


def _compiled(scaler, net, *, whole):
    @paddle.jit.to_static(full_graph=whole)
    def step(x):
        with unamp.auto_cast(dtype="float16"):
            loss = net(x).square().mean()
        return scaler.scale(loss)

    return step


def test_a_program_that_would_keep_the_scale_is_refused():
    step = _compiled(unamp.GradScaler(), network(), whole=True)
    with pytest.raises(
        unamp.NotExpressible, match="scale the loss outside of the function that is compiled"
    ):
        step(paddle.ones([2, 8]))


def test_a_checkpoint_moves_to_paddles_own_and_back():
    ours = unamp.GradScaler(64.0, 4.0, 0.25, 7, backoff_interval=3)
    w = paddle.create_parameter([3], "float32")
    optimizer = paddle.optimizer.SGD(0.0, parameters=[w])
    for factor in (1.0, math.inf, math.inf):
        minimize(ours, optimizer, (w * factor).sum())
    theirs = paddle.amp.GradScaler(enable=False)
    # without a GPU, the constructor leaves the scaler off
    theirs._enable = True
    theirs.load_state_dict(ours.state_dict("paddle"))
    state = theirs.state_dict()
    assert state.keys() == ours.state_dict("paddle").keys()
    assert (state["scale"].tolist(), state["decr_count"], state["incr_ratio"]) == ([64.0], 2, 4.0)
    back = unamp.GradScaler()
    back.load_state_dict(state)
    assert back.state_dict() == ours.state_dict()


MANNERS = ("replicated", "decorated")


@pytest.fixture(scope="module")
def two_ranks():
    """Return the outcome on each of two ranks, with the network decorated and not."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(Path(__file__).with_name("data_parallel.py")), str(port)]
    return said_by_ranks([[*command, str(rank), *MANNERS] for rank in range(2)])


@pytest.mark.parametrize("manner", MANNERS)
def test_an_overflow_on_one_rank_skips_the_step_on_every_rank(manner, two_ranks):
    first, second = [rank[manner] for rank in two_ranks]
    skipped_together(first, second)
