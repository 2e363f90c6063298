"""`unamp.decorate` on PyTorch: low parameters, float32 master weights."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import math
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler
from unamp_torch.masters import masters_of

import unamp

LOW = {"float16": torch.float16, "bfloat16": torch.bfloat16}
F32 = torch.float32
Loss = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4)
    )


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Unflatten(1, (2, 8)), layer, nn.Flatten(), nn.Linear(16, 4))


NETWORKS = {"mlp": mlp, "conv": conv, "transformer": transformer}


def made(kind: str = "mlp") -> nn.Module:
    torch.manual_seed(7)
    return NETWORKS[kind]()


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and classes, one in eight of them wrong: the loss has a floor."""
    random = torch.Generator().manual_seed(step)
    x = torch.randn(32, 16, generator=random)
    y = (x[:, :4] + x[:, 4:8] * x[:, 8:12]).argmax(1)
    return x, torch.where(torch.arange(32) % 8 == 0, torch.randint(4, (32,), generator=random), y)


def loss_of(network: nn.Module, step: int, *, overflow: bool = False, **policy: Any) -> torch.Tensor:
    x, y = batch(step)
    with unamp.autocast(**policy):
        loss = F.cross_entropy(network(x), y)
        return loss * math.inf if overflow else loss


def evaluated(network: nn.Module, **policy: Any) -> float:
    network.eval()
    with torch.no_grad():
        return sum(loss_of(network, 1000 + step, **policy).item() for step in range(16)) / 16


def values(of: Any) -> list[torch.Tensor]:
    """A network's parameters, or an optimizer's float32 weights: the master weights where it has some."""
    if isinstance(of, nn.Module):
        return [parameter.detach().clone() for parameter in of.parameters()]
    masters = masters_of(of)
    weights = {} if masters is None else masters.weights
    return [weights.get(p, p).detach().clone() for group in of.param_groups for p in group["params"]]


def same(first: Any, second: Any) -> bool:
    return all(torch.equal(a, b) and a.dtype is b.dtype for a, b in zip(values(first), values(second), strict=True))


def sgd(network: nn.Module, **kwargs: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(network.parameters(), **{"lr": 0.1} | kwargs)


@functools.cache
def float32_loss(kind: str) -> float:
    network = made(kind)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    for step in range(200):
        optimizer.zero_grad()
        loss_of(network, step, enabled=False).backward()
        optimizer.step()
    return evaluated(network, enabled=False)


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


def test_what_stays_in_float32() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList([nn.BatchNorm1d(2), nn.SyncBatchNorm(2), nn.InstanceNorm1d(2, affine=True)])
            self.norms.append(nn.InstanceNorm1d(2, affine=True, track_running_stats=True))
            self.norms.extend([nn.LayerNorm(2), nn.GroupNorm(1, 2)])
            self.deep = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.Conv1d(2, 2, 1))
            self.exact = nn.Parameter(torch.ones(2, dtype=torch.float64))
            self.index = nn.Parameter(torch.ones(2, dtype=torch.int64), requires_grad=False)

    def low(network: nn.Module, **kwargs: Any) -> set[str]:
        unamp.decorate(network, level="O2", dtype="bfloat16", **kwargs)
        return {name.rpartition(".")[0] for name, p in network.named_parameters() if p.dtype is torch.bfloat16}

    assert low(Inner()) == {"norms.2", "norms.4", "norms.5", "deep.0.0", "deep.1"}
    assert low(Inner(), excluded_layers=nn.LayerNorm) == {"norms.2", "norms.5", "deep.0.0", "deep.1"}
    network = Inner()
    assert low(network, excluded_layers=[network.deep[0], nn.Conv1d]) == {"norms.2", "norms.4", "norms.5"}
    assert low(network := Inner(), excluded_layers=network) == set()
    assert (network.exact.dtype, network.index.dtype) == (torch.float64, torch.int64)
    assert {b.dtype for b in network.buffers() if b.is_floating_point()} == {F32}


def test_tied_and_frozen_parameters() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
            self.frozen = nn.Linear(4, 4).requires_grad_(False)
            self.head.weight = self.embedding.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.frozen(self.embedding(x)))

    network = Tied()
    optimizer = sgd(network)
    exact = network.embedding.weight.detach().clone()
    unamp.decorate(network, optimizer, "O2")
    assert network.head.weight is network.embedding.weight
    assert network.frozen.weight.dtype is torch.float16
    assert list(masters_of(optimizer).weights) == [network.embedding.weight]
    frozen = values(network.frozen)
    with unamp.autocast(dtype="float16", level="O2"):
        network(torch.arange(5)).float().square().sum().backward()
    optimizer.step()
    assert torch.equal(values(optimizer)[0], exact.add(network.head.weight.grad.float(), alpha=-0.1))
    assert all(map(torch.equal, frozen, values(network.frozen)))
    kept = Tied()
    unamp.decorate(kept, level="O2", excluded_layers=kept.head)
    assert kept.embedding.weight.dtype is F32
    network.frozen.requires_grad_(True)  # gets its master weight when it is first stepped
    with unamp.autocast(dtype="float16", level="O2"):
        network(torch.arange(5)).float().square().sum().backward()
    optimizer.step()
    assert len(masters_of(optimizer).weights) == 3


def test_several_networks_and_several_optimizers() -> None:
    first, second = made(), made("conv")
    shared = [sgd(first[0]), torch.optim.Adam([*first[1:].parameters(), *second.parameters()], lr=0.1)]
    models, optimizers = unamp.decorate([first, second], shared, "O2", "bfloat16")
    assert models == [first, second]
    assert optimizers is shared
    scaler = unamp.GradScaler(64.0)
    before = values(first) + values(second)
    for loss in scaler.scale([loss_of(each, 0, level="O2", dtype="bfloat16") for each in models]):
        loss.backward()
    first[0].weight.grad[0, 0] = math.nan
    assert [scaler.step(each) for each in optimizers] == [False, True]
    after = values(first) + values(second)
    assert [torch.equal(*pair) for pair in zip(before, after, strict=True)][:3] == [True, True, False]


def test_two_optimizers_of_one_parameter_follow_each_other() -> None:
    network = made()
    both = [sgd(network), sgd(network, lr=0.01)]
    unamp.decorate(network, both, "O2")
    exact = values(both[0])
    for _ in range(3):
        for optimizer, rate in zip(both, (0.1, 0.01), strict=True):
            for parameter in network.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
            exact = [weight - rate for weight in exact]
    assert all(map(torch.equal, exact, values(both[0])))


def test_a_changed_parameter_takes_its_master_weight_along() -> None:
    network = nn.Linear(5, 3)
    optimizer = sgd(network, lr=0.0)
    unamp.decorate(network, optimizer, "O2")
    before = values(optimizer)[0]
    network.weight.data[1:].clamp_(-0.01, 0.01)
    network.weight.data[0, 0] = 0.5
    saved = optimizer.state_dict()["state"][0]["master_weight"]
    changed = network.weight.detach().float()
    assert torch.equal(saved[0, 1:], before[0, 1:])
    assert saved[0, 0] == 0.5
    assert saved[1:].abs().max() <= 0.0101
    other = nn.Linear(5, 3)
    network.load_state_dict(other.state_dict())
    optimizer.step()
    assert torch.equal(network.weight, other.weight.half())
    assert not torch.equal(network.weight.float(), changed)


def test_hooks_run_once_and_see_float32() -> None:
    network = made()
    optimizer = sgd(network)
    unamp.decorate(network, optimizer, "O2")
    seen: list[Any] = []
    optimizer.register_step_pre_hook(lambda own, args, kwargs: seen.append(own.param_groups[0]["params"][0].grad.dtype))
    optimizer.register_step_post_hook(lambda own, args, kwargs: own.zero_grad())
    optimizer.register_state_dict_post_hook(lambda own, state: seen.append(sorted(state["state"][0])))
    optimizer.register_load_state_dict_pre_hook(lambda own, state: seen.append(sorted(state["state"][0])))
    schedule = lr_scheduler.StepLR(optimizer, 1)
    loss_of(network, 0, level="O2", dtype="float16").backward()
    optimizer.step()
    schedule.step()
    assert all(p.grad is None for p in network.parameters())
    optimizer.load_state_dict(optimizer.state_dict())
    loss_of(network, 0, level="O2", dtype="float16").backward()
    optimizer.step()
    assert seen == [F32, ["master_weight"], ["master_weight"], F32]


def test_a_graph_can_still_be_used_after_a_step_of_other_parameters() -> None:
    network, other = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = torch.optim.SGD([*network.parameters(), *other.parameters()], lr=0.1)
    unamp.decorate([network, other], optimizer, "O2")
    x = torch.ones(1, 2, dtype=torch.float16, requires_grad=True)
    pending = network(x).sum()
    other(x).sum().backward()
    optimizer.step()
    pending.backward()
    optimizer.step()
    pending = network(x).sum()
    pending.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        pending.backward()


def test_copies_and_pickles() -> None:
    def train(network: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
        for step in steps:
            optimizer.zero_grad()
            loss_of(network, step, level="O2", dtype="float16").backward()
            optimizer.step()

    network = made("conv")
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    unamp.decorate(network, optimizer, "O2", save_dtype="float32")
    train(network, optimizer, range(3))
    others = [copy.deepcopy((network, optimizer)), pickle.loads(pickle.dumps((network, optimizer)))]
    saved = io.BytesIO()
    torch.save((network, optimizer), saved)
    saved.seek(0)
    others.append(torch.load(saved, weights_only=False))
    train(network, optimizer, range(3, 6))
    for other, its in others:
        assert not same(other, network)
        assert its.param_groups[0]["params"][0] is other[1].weight
        assert type(its) is type(optimizer)
        train(other, its, range(3, 6))
        assert same(other, network)
        assert same(its, optimizer)
        assert {value.dtype for value in other.state_dict().values()} == {F32, torch.int64}


@pytest.mark.parametrize("save_dtype", ["float16", "bfloat16", "float32", "float64"])
def test_what_is_saved_of_a_network(save_dtype: str) -> None:
    network = nn.ModuleDict({"body": made("conv"), "other": nn.Linear(2, 2)})
    unamp.decorate(network["body"], level="O2", save_dtype=save_dtype)
    for whole in (network, nn.DataParallel(network)):
        for name, value in whole.state_dict().items():
            buffer = "running" in name or "num_batches" in name
            assert buffer or value.dtype is (F32 if ".other." in f".{name}" else getattr(torch, save_dtype)), name
    before = values(network)
    state = copy.deepcopy(network.state_dict())
    for parameter in network.parameters():
        parameter.data.zero_()
    network.load_state_dict(state)
    if save_dtype != "bfloat16":  # which has fewer digits
        assert all(map(torch.equal, before, values(network)))
    assert {p.dtype for p in network["body"].parameters()} == {torch.float16, F32}


def test_added_parameters_get_master_weights() -> None:
    network = made()
    optimizer = sgd(network[0])
    unamp.decorate(network, optimizer, "O2")
    optimizer.add_param_group({"params": network[3].parameters(), "lr": 1e-5})
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = network[3].bias.detach().float()
    for _ in range(2):
        optimizer.step()
    assert torch.equal(values(optimizer)[3], before - 1e-5 - 1e-5)


def test_a_checkpoint_of_float32_training_can_be_continued() -> None:
    network = made()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    loss_of(network, 0, enabled=False).backward()
    optimizer.step()
    low = made()
    its = torch.optim.Adam(low.parameters(), lr=0.5)
    unamp.decorate(low, its, "O2")
    low.load_state_dict(network.state_dict())
    its.load_state_dict(optimizer.state_dict())
    assert its.param_groups[0]["lr"] == 0.01
    assert all(map(torch.equal, values(its), (v.half().float() for v in values(network))))
    assert torch.equal(its.state[low[0].weight]["exp_avg_sq"], optimizer.state[network[0].weight]["exp_avg_sq"])
    assert all(torch.equal(p, q.half()) for p, q in zip(low.parameters(), network.parameters(), strict=True))


def test_a_bad_checkpoint_changes_nothing() -> None:
    network = made()
    optimizer = sgd(network, momentum=0.9)
    unamp.decorate(network, optimizer, "O2")
    loss_of(network, 0, level="O2", dtype="float16").backward()
    optimizer.step()
    state, before = copy.deepcopy(optimizer.state_dict()), values(optimizer)
    state["state"][1]["master_weight"] = torch.zeros(3)
    state["state"][0]["master_weight"].zero_()
    with pytest.raises(ValueError, match=r"master weight of parameter 1 has the shape \(3,\), the parameter has \(32,\)"):
        optimizer.load_state_dict(state)
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optimizer.load_state_dict({"state": state["state"], "param_groups": []})
    assert all(map(torch.equal, before, values(optimizer)))
    assert all(map(torch.equal, values(network), (v.half() for v in before)))


def test_sparse_gradients() -> None:
    embedding = nn.Embedding(5, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(embedding.parameters(), lr=0.1)
    unamp.decorate(embedding, optimizer, "O2")
    before, scaler = values(optimizer)[0], unamp.GradScaler(16.0)
    scaler.scale(embedding(torch.tensor([1, 1, 2])).float().sum()).backward()
    assert scaler.step(optimizer) is True
    moved = before - values(optimizer)[0]
    torch.testing.assert_close(moved, torch.tensor([0.0, 0.1, 0.1, 0.0, 0.0])[:, None].expand(5, 3), atol=1e-4, rtol=0)


def _low_already() -> tuple[Any, Any]:
    network = made()
    network[3].half()
    return network, sgd(network)


def _begun() -> tuple[Any, Any]:
    network = made()
    optimizer = sgd(network, momentum=0.9)
    loss_of(network, 0, enabled=False).backward()
    optimizer.step()
    return network, optimizer


def _decorated_already() -> tuple[Any, Any]:
    network, optimizer = made(), sgd(made())
    unamp.decorate(made(), optimizer, "O2")
    return network, optimizer


def _no_shape_yet() -> tuple[Any, Any]:
    network = nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(3))
    return network, sgd(network[0])


REFUSED = {
    "parameter 3.weight is float16 already": _low_already,
    "has taken steps": _begun,
    "is decorated already": _decorated_already,
    "parameter 1.weight has no shape yet": _no_shape_yet,
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_is_refused_is_left_as_it_was(said: str) -> None:
    network, optimizer = REFUSED[said]()
    other, its = made(), sgd(made())
    before, kinds = values(network[0]), (type(its), type(optimizer))
    with pytest.raises(ValueError, match=said):
        unamp.decorate([other, network], [its, optimizer], "O2")
    assert all(p.dtype is F32 for p in other.parameters())
    assert all(map(torch.equal, before, values(network[0])))
    assert (type(its), type(optimizer)) == kinds
    assert masters_of(its) is None


@pytest.mark.parametrize("excluded", [torch.relu, int, "Linear"])
def test_excluded_layers_are_layers(excluded: Any) -> None:
    network = made()
    with pytest.raises(TypeError, match=r"excluded_layers takes torch.nn.Modules and classes of them"):
        unamp.decorate(network, level="O2", excluded_layers=[nn.LayerNorm, excluded])
    assert {p.dtype for p in network.parameters()} == {F32}


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_networks_that_are_distributed_already_are_refused() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    for distributed in (
        nn.parallel.DistributedDataParallel(made()),
        FullyShardedDataParallel(made(), device_id=torch.device("cpu")),
        fully_shard(made(), mesh=init_device_mesh("cpu", (1,))),
    ):
        with pytest.raises(ValueError, match="distributed already"):
            unamp.decorate(nn.Sequential(distributed), level="O2")
        assert {p.dtype for p in distributed.parameters()} == {F32}


@pytest.mark.parametrize("watched", [False, True], ids=["", "by a trace"])
@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize(
    "norm", [nn.LayerNorm(8), nn.GroupNorm(2, 8), nn.RMSNorm(8), nn.InstanceNorm1d(8, affine=True)], ids=repr
)
def test_norms_with_low_parameters(norm: nn.Module, dtype: str, watched: bool) -> None:
    exact, norm = norm, copy.deepcopy(norm)
    nn.init.uniform_(norm.weight)
    unamp.decorate(norm, level="O2", dtype=dtype)
    exact.load_state_dict(norm.state_dict())
    x = torch.randn(4, 8, 8)
    low = x.to(LOW[dtype])
    for deny, given, atol in (("layer_norm group_norm rms_norm instance_norm".split(), x, 1e-6), ((), low, 0.05)):
        with unamp.trace() if watched else contextlib.nullcontext(), unamp.autocast(dtype=dtype, level="O3", deny=deny):
            found = norm(given)
        assert found.dtype is (F32 if deny else LOW[dtype])
        torch.testing.assert_close(found.float(), exact(given.float()), rtol=0, atol=atol)
        found.float().sum().backward()
        assert norm.weight.grad.dtype is LOW[dtype]


def test_other_optimizers_are_not_affected() -> None:
    network = made()
    optimizer, plain = sgd(network), torch.optim.SGD(made().parameters(), lr=0.1)
    step, kind = torch.optim.SGD.step, type(plain)
    unamp.decorate(network, optimizer, "O2")
    assert torch.optim.SGD.step is step
    assert type(plain) is kind is torch.optim.SGD
    assert repr(optimizer) == repr(plain)
    assert "master_weight" not in str(plain.state_dict())
