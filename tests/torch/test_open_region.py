"""A region that stays open uses no cast of a parameter from before a change.

It does not matter how the parameter was changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unamp
from unamp import Policy, policy_region
from unamp.adapter import major_minor

#: Policies whose casts native autocast makes (with its own cache), and whose casts unamp's kernels
#: make.
POLICIES = [
    Policy("O1", "bfloat16", preset="native"),
    Policy("O1", "bfloat16", preset="torch-cpu"),
    Policy("O1", "bfloat16"),
    Policy("O1", "bfloat16", widen_results=True),
    Policy("O2", "bfloat16"),
    Policy("O3", "bfloat16"),
]


# --- writes with no backward pass before the next use ---------------------------------------------


def _step(
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
) -> Callable[[nn.Module], None]:
    def update(model: nn.Module) -> None:
        parameters = list(model.parameters())
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        make(parameters).step()

    return update


def _without_gradient(write: Callable[[nn.Parameter], Any]) -> Callable[[nn.Module], None]:
    @torch.no_grad()
    def update(model: nn.Module) -> None:
        for parameter in model.parameters():
            write(parameter)

    return update


def _directly(write: Callable[[nn.Parameter], Any]) -> Callable[[nn.Module], None]:
    def update(model: nn.Module) -> None:
        for parameter in model.parameters():
            write(parameter)

    return update


def _minus(parameter: nn.Parameter) -> None:
    parameter -= 0.5


def _set_row(parameter: nn.Parameter) -> None:
    parameter[0] = 3.0


def _set_data(parameter: nn.Parameter) -> None:
    parameter.data = parameter.data + 1


def _load(model: nn.Module, **kwargs: Any) -> None:
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()}, **kwargs)


def _swap(model: nn.Module) -> None:
    for parameter in model.parameters():
        torch.utils.swap_tensors(parameter, nn.Parameter(torch.ones_like(parameter)))


def _of_a_vector(model: nn.Module) -> None:
    vector = nn.utils.parameters_to_vector(model.parameters()).detach()
    nn.utils.vector_to_parameters(vector + 1, model.parameters())


def _in_another_region(**arguments: Any) -> Callable[[nn.Module], None]:
    def update(model: nn.Module) -> None:
        with unamp.autocast(**arguments):
            _without_gradient(lambda p: p.add_(1))(model)

    return update


def _where_autocast_is_off(model: nn.Module) -> None:
    with torch.autocast("cpu", enabled=False):
        _without_gradient(lambda p: p.add_(1))(model)


def _with_a_scaler(model: nn.Module) -> None:
    scaler = unamp.GradScaler(init_scale=2.0)
    scaler.scale(torch.ones(()))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    scaler.step(torch.optim.SGD(model.parameters(), lr=0.5))


def _storage(parameter: nn.Parameter) -> None:
    parameter.untyped_storage().copy_(torch.full_like(parameter, 2.0).untyped_storage())


@torch.library.custom_op("unamp_tests::double", mutates_args=("tensor",))
def _double(tensor: Tensor) -> None:
    tensor.numpy()[...] *= 2


def _compiled(model: nn.Module) -> None:
    @torch.compile(backend="aot_eager")
    def update(weight: Tensor, bias: Tensor) -> None:
        with torch.no_grad():
            weight.add_(1)
            bias.mul_(2)

    update(*model.parameters())


UPDATES: dict[str, Callable[[nn.Module], None]] = {
    "SGD": _step(lambda p: torch.optim.SGD(p, lr=0.5, foreach=False)),
    "SGD, foreach": _step(lambda p: torch.optim.SGD(p, lr=0.5, foreach=True)),
    "SGD, fused": _step(lambda p: torch.optim.SGD(p, lr=0.5, fused=True)),
    "AdamW": _step(lambda p: torch.optim.AdamW(p, lr=0.5, foreach=False)),
    "AdamW, foreach": _step(lambda p: torch.optim.AdamW(p, lr=0.5, foreach=True)),
    "AdamW, fused": _step(lambda p: torch.optim.AdamW(p, lr=0.5, fused=True)),
    "p -= ...": _without_gradient(_minus),
    "p.add_": _without_gradient(lambda p: p.add_(1)),
    "p.copy_": _without_gradient(lambda p: p.copy_(p + 1)),
    "p.zero_": _without_gradient(lambda p: p.zero_()),
    "p.lerp_": _without_gradient(lambda p: p.lerp_(torch.ones_like(p), 0.5)),
    "p[0] = ...": _without_gradient(_set_row),
    "a view of p": _without_gradient(lambda p: p.view(-1).add_(1)),
    "out=p": _without_gradient(lambda p: torch.add(p, 1, out=p)),
    "foreach": torch.no_grad()(lambda model: torch._foreach_mul_(list(model.parameters()), 2.0)),
    "nn.init": _directly(lambda p: nn.init.constant_(p, 3.0)),
    "p.data = ...": _directly(_set_data),
    "p.data.add_": _directly(lambda p: p.data.add_(1)),
    "p.data.copy_": _directly(lambda p: p.data.copy_(p.data + 1)),
    "out=p.data": _directly(lambda p: torch.add(p.data, 1, out=p.data)),
    "p.detach().add_": _directly(lambda p: p.detach().add_(1)),
    "storage": _directly(_storage),
    "load_state_dict": _load,
    "load_state_dict, assign": lambda model: _load(model, assign=True),
    "swap_tensors": _swap,
    "vector_to_parameters": _of_a_vector,
    "GradScaler": _with_a_scaler,
    "region that is off": _in_another_region(enabled=False),
    "region without cache": _in_another_region(dtype="bfloat16", cache_enabled=False),
    "region of all operations": _in_another_region(level="O3", dtype="bfloat16"),
    "torch.autocast that is off": _where_autocast_is_off,
    "operator of one's own": _directly(lambda p: _double(p.detach())),
    "compiled": _compiled,
}


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)
def test_a_write_is_seen(update: Callable[[nn.Module], None], policy: Policy) -> None:
    model, x = nn.Linear(4, 4), torch.rand(2, 4)
    with policy_region(policy):
        before = model(x)
        update(model)
        after = model(x)
    with policy_region(policy):
        fresh = model(x)
    assert not torch.equal(before, fresh)
    assert torch.equal(after, fresh)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_a_write_through_an_alias_from_before_is_seen(policy: Policy) -> None:
    model, x = nn.Linear(4, 4), torch.rand(2, 4)
    alias = model.weight.data
    with policy_region(policy):
        model(x)
        alias.zero_()
        after = model(x)
    with policy_region(policy):
        fresh = model(x)
    assert torch.equal(after, fresh)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_after_a_backward_pass_a_write_is_seen_that_no_operator_made(policy: Policy) -> None:
    model, x = nn.Linear(4, 4), torch.rand(2, 4)
    with policy_region(policy):
        model(x).float().sum().backward()
        model.weight.detach().numpy()[...] = 0.0
        after = model(x)
    with policy_region(policy):
        fresh = model(x)
    assert torch.equal(after, fresh)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_other_writes_cost_no_cast(policy: Policy) -> None:
    weight, x = nn.Parameter(torch.rand(4, 4)), torch.rand(4, 4)
    norm = nn.BatchNorm1d(4)
    with policy_region(policy):
        for _ in range(3):
            x = F.linear(x, weight).relu_()
            x = F.dropout(norm(x) + torch.zeros(4).fill_(1.0), 0.1)
    casts, stack, seen = 0, [x.grad_fn], set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        of_weight = any(
            hasattr(parent, "variable") and parent.variable is weight
            for parent, _ in node.next_functions
        )
        casts += node.name() == "ToCopyBackward0" and of_weight
        stack += [parent for parent, _ in node.next_functions]
    # Before 2.11 native autocast's cache keeps casts without their gradients, so unamp keeps none.
    assert casts == (1 if major_minor(torch.__version__) >= (2, 11) else 3)


# --- training -------------------------------------------------------------------------------------


def _by_hand(parameters: list[nn.Parameter]) -> Callable[[], None]:
    @torch.no_grad()
    def step() -> None:
        for parameter in parameters:
            assert parameter.grad is not None
            parameter -= 0.05 * parameter.grad

    return step


def _by_hand_on_data(parameters: list[nn.Parameter]) -> Callable[[], None]:
    def step() -> None:
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.data.add_(parameter.grad, alpha=-0.05)

    return step


STEPS: dict[str, Callable[[list[nn.Parameter]], Callable[[], Any]]] = {
    "single": lambda p: torch.optim.Adam(p, lr=0.02, foreach=False).step,
    "foreach": lambda p: torch.optim.Adam(p, lr=0.02, foreach=True).step,
    "fused": lambda p: torch.optim.Adam(p, lr=0.02, fused=True).step,
    "by hand": _by_hand,
    "by hand on data": _by_hand_on_data,
    "compiled": lambda p: torch.compile(torch.optim.SGD(p, lr=0.05).step, backend="aot_eager"),
}


def _losses(
    policy: Policy,
    make: Callable[[list[nn.Parameter]], Callable[[], Any]],
    wrap: Any,
    *,
    around: bool,
) -> Iterator[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    x = torch.randn(32, 8)
    y = 2 * x[:, :1] + 1
    step, compute = make(list(model.parameters())), wrap(model)

    def train() -> float:
        model.zero_grad()
        loss = F.mse_loss(compute(x).float(), y)
        loss.backward()
        step()
        return loss.item()

    if around:
        with policy_region(policy):
            yield from [train() for _ in range(30)]
    else:
        for _ in range(30):
            with policy_region(policy):
                yield train()


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("make", STEPS.values(), ids=STEPS)
def test_training_inside_one_region_is_training_in_a_region_for_each_step(
    make: Callable[[list[nn.Parameter]], Callable[[], Any]], policy: Policy
) -> None:
    around, each = (
        list(_losses(policy, make, lambda model: model, around=around)) for around in (True, False)
    )
    assert around == each
    assert around[-1] < around[0] / 2


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_so_it_is_with_a_compiled_network(policy: Policy) -> None:
    wrap = lambda model: torch.compile(model, backend="aot_eager")  # noqa: E731
    around, each = (
        list(_losses(policy, STEPS["single"], wrap, around=around)) for around in (True, False)
    )
    assert around == each


def test_so_it_is_with_a_scaler_and_a_decorated_optimizer() -> None:
    def losses(around: bool) -> list[float]:
        torch.manual_seed(0)
        model, scaler = nn.Linear(8, 1), unamp.GradScaler(init_scale=128.0)
        model, optimizer = unamp.decorate(
            model, torch.optim.SGD(model.parameters(), lr=0.05), level="O2", dtype="float16"
        )
        frozen = copy.deepcopy(model).float()  # float32 parameters beside the low ones
        x = torch.randn(32, 8)

        def train() -> float:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x).float() + frozen(x).float(), 2 * x[:, :1])
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            with torch.no_grad():
                for parameter, low in zip(frozen.parameters(), model.parameters(), strict=True):
                    parameter.lerp_(low.float(), 0.1)
            return loss.item()

        if not around:
            return [_in_region(train) for _ in range(20)]
        with unamp.autocast(level="O2", dtype="float16"):
            return [train() for _ in range(20)]

    assert losses(True) == losses(False)


def _in_region(train: Callable[[], float]) -> float:
    with unamp.autocast(level="O2", dtype="float16"):
        return train()
