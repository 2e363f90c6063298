"""Training with low parameters is float32 training: what a step takes, gives and puts back."""

from __future__ import annotations

import copy
import functools
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from decorated import F32, LOW, NETWORKS, evaluated, float32_loss, loss_of, made, same, sgd, values
from torch import nn
from torch.optim import lr_scheduler

import unamp


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("level", ["O2", "O3"])
@pytest.mark.parametrize("dtype", LOW)
def test_training_with_an_overflow_reaches_the_loss_of_float32(kind: str, level: str, dtype: str) -> None:
    network, policy = made(kind), {"level": level, "dtype": dtype}
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    unamp.decorate(network, optimizer, level, dtype)
    scaler = unamp.GradScaler(1024.0)
    for step in range(200):
        optimizer.zero_grad()
        before = values(network) + values(optimizer) if step == 50 else []
        scaler.scale(loss_of(network, step, overflow=step == 50, **policy)).backward()
        assert scaler.step(optimizer) is (step != 50)
        scaler.update()
        assert scaler.get_scale() == (1024.0 if step < 50 else 512.0)
        if step == 50:
            assert all(map(torch.equal, before, values(network) + values(optimizer)))
    assert {p.dtype for p in network.parameters()} == {LOW[dtype]} | ({F32} if kind == "conv" else set())
    assert evaluated(network, **policy) == pytest.approx(float32_loss(kind), rel=0.03)


def checkpointed(kind: str, dtype: str, scheduled: bool, **kwargs: Any) -> list[Any]:
    network = made(kind)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01, weight_decay=0.01)
    before = lr_scheduler.StepLR(optimizer, 5, 0.5) if scheduled else None
    unamp.decorate(network, optimizer, "O2", dtype, **kwargs)
    return [network, optimizer, before or lr_scheduler.StepLR(optimizer, 5, 0.5), unamp.GradScaler(4096.0, growth_interval=3)]


@pytest.mark.parametrize("scheduled", [False, True], ids=["schedule made after", "schedule made before"])
@pytest.mark.parametrize("kwargs", [{}, {"save_dtype": "float32"}, {"master_grad": True}], ids=str)
@pytest.mark.parametrize(("kind", "dtype"), [("conv", "float16"), ("mlp", "bfloat16")])
def test_a_resumed_training_ends_where_an_uninterrupted_one_does(
    kind: str, dtype: str, kwargs: dict[str, Any], scheduled: bool, tmp_path: Path
) -> None:
    def run(parts: list[Any], steps: range) -> None:
        network, optimizer, schedule, scaler = parts
        for step in steps:
            optimizer.zero_grad()
            for part in range(2):
                loss = loss_of(network, 100 * part + step, overflow=step in (4, 11), level="O2", dtype=dtype)
                scaler.scale(loss / 2).backward()
            scaler.step(optimizer)
            scaler.update()
            schedule.step()

    start = functools.partial(checkpointed, kind, dtype, scheduled, **kwargs)
    whole, first = start(), start()
    run(whole, range(20))
    run(first, range(8))
    torch.save([each.state_dict() for each in first], tmp_path / "checkpoint")
    resumed = start()
    for each, state in zip(resumed, torch.load(tmp_path / "checkpoint"), strict=True):
        each.load_state_dict(state)
    assert same(resumed[0], first[0])
    run(resumed, range(8, 20))
    assert same(resumed[0], whole[0])
    assert same(resumed[1], whole[1])
    assert [each.state_dict() for each in resumed[2:]] == [each.state_dict() for each in whole[2:]]


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "fused SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "fused AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "foreach AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Adafactor": lambda p: torch.optim.Adafactor(p),
    "Adagrad": lambda p: torch.optim.Adagrad(p),
    "Adamax": lambda p: torch.optim.Adamax(p),
    "ASGD": lambda p: torch.optim.ASGD(p),
    "NAdam": lambda p: torch.optim.NAdam(p),
    "RAdam": lambda p: torch.optim.RAdam(p),
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
    "Rprop": lambda p: torch.optim.Rprop(p),
}


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_master_weights_are_those_of_float32_steps_with_the_same_gradients(name: str, dtype: str) -> None:
    pair = []
    for _ in range(2):
        network = made()
        groups = [{"params": list(network[0].parameters())}, {"params": list(network[1:].parameters()), "lr": 0.003}]
        optimizer = OPTIMIZERS[name](groups)
        pair.append((network, optimizer, lr_scheduler.ExponentialLR(optimizer, 0.9)))
    (network, optimizer, schedule), (exact, theirs, their_schedule) = pair
    unamp.decorate(network, optimizer, "O2", dtype)
    assert isinstance(optimizer, type(theirs))
    for step in range(6):
        optimizer.zero_grad()
        loss_of(network, step, level="O2", dtype=dtype).backward()
        for low, parameter in zip(network.parameters(), exact.parameters(), strict=True):
            assert low.dtype is low.grad.dtype is LOW[dtype]
            parameter.grad = low.grad.float()
        held = [(p, p.grad, p.grad.clone()) for p in network.parameters()]
        for each in (optimizer, theirs, schedule, their_schedule):
            each.step()
        assert all(p.grad is gradient and torch.equal(gradient, copied) for p, gradient, copied in held)
    assert same(optimizer, theirs)
    assert all(map(torch.equal, values(network), (v.to(LOW[dtype]) for v in values(exact))))
    state = [v for own in optimizer.state.values() for k, v in own.items() if k != "step" and isinstance(v, torch.Tensor)]
    assert {v.dtype for v in state} <= {F32}
    assert schedule.get_last_lr() == their_schedule.get_last_lr()
    assert optimizer.state.keys() <= set(network.parameters())


@pytest.mark.parametrize("dtype", LOW)
def test_small_updates_are_kept(dtype: str) -> None:
    moved = []
    for master_weight in (None, False):
        network = nn.Linear(4, 4, bias=False)
        nn.init.ones_(network.weight)
        optimizer = sgd(network, lr=1e-5)
        unamp.decorate(network, optimizer, "O2", dtype, master_weight=master_weight)
        for _ in range(1000):
            network.weight.grad = torch.ones_like(network.weight)
            optimizer.step()
        moved.append(network.weight.float().mean().item())
    assert moved[0] == pytest.approx(0.99, abs=0.002)
    assert moved[1] == 1.0


def test_a_closure_sees_the_low_weights() -> None:
    network, exact = made(), made()
    optimizer, theirs = [torch.optim.LBFGS(each.parameters(), max_iter=5) for each in (network, exact)]
    unamp.decorate(network, optimizer, "O2", "bfloat16")
    seen = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        seen.append({p.dtype for group in optimizer.param_groups for p in group["params"]})
        loss = loss_of(network, 0, level="O2", dtype="bfloat16")
        loss.backward()
        return loss

    def exact_closure() -> torch.Tensor:
        theirs.zero_grad()
        loss = loss_of(exact, 0, enabled=False)
        loss.backward()
        return loss

    first = optimizer.step(closure)
    theirs.step(exact_closure)
    assert seen == [{torch.bfloat16}] * len(seen)
    assert len(seen) >= 5
    reached, exactly = closure().item(), exact_closure().item()
    assert reached == pytest.approx(exactly, abs=0.02)
    assert reached < 0.2 * first.item()
    state = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(state)
    optimizer.step(closure=closure)


@pytest.mark.parametrize("name", ["AdamW", "Adafactor", "RMSprop"])
def test_a_step_in_an_open_region_is_the_same(name: str) -> None:
    ended = []
    for inside in (False, True):
        network = made()
        optimizer = getattr(torch.optim, name)(network.parameters(), lr=0.01)
        unamp.decorate(network, optimizer, "O3")
        for step in range(3):
            optimizer.zero_grad()
            loss_of(network, step, level="O3", dtype="float16").backward()
            with unamp.autocast(enabled=inside, level="O3", dtype="float16"):
                optimizer.step()
        ended.append(values(optimizer))
    assert all(map(torch.equal, *ended))


def test_a_closure_sees_the_policy_around_the_step() -> None:
    network = made()
    optimizer = unamp.decorate(network, sgd(network), "O2")[1]
    seen = []

    def closure() -> None:
        seen.append(unamp.current_policy())

    with unamp.autocast(level="O3", dtype="float16"):
        optimizer.step(closure)
        seen.append(unamp.current_policy())
    optimizer.step(closure)
    assert seen[0] is seen[1] is not None
    assert seen[2] is None


def test_whatever_happens_in_a_step_everything_is_put_back() -> None:
    class Fails(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            super().step()
            raise ArithmeticError

    network = made()
    optimizer = Fails(network.parameters(), lr=0.1)
    unamp.decorate(network, optimizer, "O2")
    loss_of(network, 0, level="O2", dtype="float16").backward()
    before, gradients = values(network), [p.grad for p in network.parameters()]
    with pytest.raises(ArithmeticError):
        optimizer.step()
    parameters = list(network.parameters())
    assert all(a is b for a, b in zip(parameters, optimizer.param_groups[0]["params"], strict=True))
    assert all(p.dtype is torch.float16 and p.grad is g for p, g in zip(parameters, gradients, strict=True))
    assert not all(map(torch.equal, before, values(network)))  # what the step had done already
    assert all(map(torch.equal, values(network), (v.half() for v in values(optimizer))))


def test_clipping_sees_unscaled_float32_gradients() -> None:
    network = made()
    optimizer = sgd(network)
    unamp.decorate(network, optimizer, "O2")
    loss_of(network, 0, level="O2", dtype="float16").backward()
    plain = [p.grad.float() for p in network.parameters()]
    optimizer.zero_grad()
    scaler = unamp.GradScaler(2.0**12)
    scaler.scale(loss_of(network, 0, level="O2", dtype="float16")).backward()
    scaler.unscale_(optimizer)
    assert {p.grad.dtype for p in network.parameters()} == {F32}
    norm = torch.nn.utils.clip_grad_norm_(network.parameters(), 0.1)
    assert norm.item() == pytest.approx(math.hypot(*(g.norm().item() for g in plain)), rel=0.01)
    before = values(optimizer)
    clipped = [p.grad.clone() for p in network.parameters()]
    assert scaler.step(optimizer) is True
    for after, weight, gradient in zip(values(optimizer), before, clipped, strict=True):
        assert torch.equal(after, weight.add(gradient, alpha=-0.1))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_are_low_again_after_they_are_cleared(set_to_none: bool) -> None:
    network = made()
    optimizer = sgd(network)
    unamp.decorate(network, optimizer, "O2")
    for step in range(2):
        scaler = unamp.GradScaler(64.0)
        scaler.scale(loss_of(network, step, overflow=step == 1, level="O2", dtype="float16")).backward()
        assert {p.grad.dtype for p in network.parameters()} == {torch.float16}
        assert scaler.step(optimizer) is (step == 0)
        optimizer.zero_grad(set_to_none)


def test_a_tiny_gradient_survives_unscaling() -> None:
    network = nn.Linear(1, 1, bias=False)
    optimizer = sgd(network, lr=1.0)
    unamp.decorate(network, optimizer, "O2")
    before = values(optimizer)[0]
    scaler = unamp.GradScaler(2.0**16)
    scaler.scale(network.weight.sum().float() * 2.0**-30).backward()
    assert scaler.step(optimizer) is True  # float16's smallest number is 2**-24
    assert torch.equal(before - values(optimizer)[0], before - (before - 2.0**-30))
    assert network.weight.grad.item() == 2.0**-30


def test_without_master_weights_unscaling_float16_is_refused() -> None:
    network = made()
    optimizer = sgd(network)
    unamp.decorate(network, optimizer, "O2", master_weight=False)
    scaler = unamp.GradScaler(8.0)
    scaler.scale(loss_of(network, 0, level="O2", dtype="float16")).backward()
    with pytest.raises(ValueError, match="there are float16 gradients"):
        scaler.step(optimizer)


def test_torchs_own_scaler_works_with_a_fused_optimizer() -> None:
    network = made()
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    unamp.decorate(network, optimizer, "O2")
    scaler, before = torch.amp.GradScaler("cpu", init_scale=64.0), values(network)
    for overflow, changed in ((False, True), (True, False)):
        optimizer.zero_grad()
        before = values(network)
        scaler.scale(loss_of(network, 0, overflow=overflow, level="O2", dtype="float16")).backward()
        scaler.step(optimizer)
        scaler.update()
        assert all(map(torch.equal, before, values(network))) is not changed
    assert scaler.get_scale() == 32.0


@pytest.mark.parametrize("dtype", LOW)
def test_master_grad_adds_up_in_float32(dtype: str) -> None:
    network = made()
    optimizer = sgd(network)
    unamp.decorate(network, optimizer, "O2", dtype, master_grad=True)
    expected = [torch.zeros_like(p, dtype=F32) for p in network.parameters()]
    for step in range(4):
        loss = loss_of(network, step, level="O2", dtype=dtype)
        for total, gradient in zip(expected, torch.autograd.grad(loss, list(network.parameters())), strict=True):
            total += gradient.float()
        loss_of(network, step, level="O2", dtype=dtype).backward()
    assert all(torch.equal(p.grad, total) for p, total in zip(network.parameters(), expected, strict=True))
    copied, restored = copy.deepcopy((network, optimizer)), pickle.loads(pickle.dumps((network, optimizer)))
    for other, its in (copied, restored):
        its.zero_grad()
        loss_of(other, 0, level="O2", dtype=dtype).backward()
        assert {p.grad.dtype for p in other.parameters()} == {F32}
