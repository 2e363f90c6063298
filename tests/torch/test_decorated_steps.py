"""The state of a decorated optimizer hides no change of a parameter between steps."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from decorated import LOW, sgd, values
from torch import Tensor, nn

import unamp


def decorated(
    dtype: str, size: tuple[int, ...] = (7, 9), **kwargs: Any
) -> tuple[nn.Parameter, torch.optim.Optimizer]:
    """Return a parameter and its decorated optimizer, which has taken one step."""
    network = nn.ParameterList([nn.Parameter(torch.randn(size))])
    optimizer = sgd(network, **{"lr": 0.0} | kwargs)
    unamp.decorate(network, optimizer, "O2", dtype)
    step(network[0], optimizer)
    return network[0], optimizer


def step(parameter: Tensor, optimizer: torch.optim.Optimizer, gradient: float = 1.0) -> None:
    parameter.grad = torch.full_like(parameter, gradient)
    optimizer.step()


def set_last(parameter: Tensor) -> None:
    parameter.data.view(-1)[-1] = 0.25


def clamp(parameter: Tensor) -> None:
    parameter.data.clamp_(-0.5, 0.5)


def share_other_memory(parameter: Tensor) -> None:
    parameter.data = (
        torch.linspace(-1, 1, parameter.numel()).to(parameter.dtype).view(parameter.shape)
    )


def share_transposed_memory(parameter: Tensor) -> None:
    parameter.data = (
        torch.linspace(-1, 1, parameter.numel()).to(parameter.dtype).view(parameter.shape[::-1]).t()
    )


def write_bytes(parameter: Tensor) -> None:
    parameter.detach().view(torch.int16).numpy()[3, 4] ^= 1


def copy(parameter: Tensor) -> None:
    with torch.no_grad():
        parameter.copy_(torch.ones(parameter.shape))


def lose_a_number(parameter: Tensor) -> None:
    parameter.data[2, 2] = math.nan


CHANGES = [
    set_last,
    clamp,
    share_other_memory,
    share_transposed_memory,
    write_bytes,
    copy,
    lose_a_number,
]


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("change", CHANGES)
def test_master_weights_follow_every_change(change: Callable[[Tensor], None], dtype: str) -> None:
    parameter, optimizer = decorated(dtype)
    before = values(optimizer)[0]
    change(parameter)
    low = parameter.detach().clone()
    assert not torch.equal(low, before.to(low.dtype))
    for _ in range(2):
        step(parameter, optimizer)
        expected = torch.where(before.to(low.dtype) == low, before, low.float())
        assert torch.equal(values(optimizer)[0].nan_to_num(7.0), expected.nan_to_num(7.0))
        assert torch.equal(parameter.detach().nan_to_num(7.0), low.nan_to_num(7.0))


@pytest.mark.parametrize("zero", [0.0, -0.0])
@pytest.mark.parametrize("dtype", LOW)
def test_a_master_weight_that_is_lost_follows_when_its_parameter_is_mended(
    dtype: str, zero: float
) -> None:
    parameter, optimizer = decorated(dtype, lr=1.0)
    for bits in (-1, 0x7FFFFFFF, 0x7F800001):  # NaNs; rounded as numbers, some would become 0
        lost = torch.full(parameter.shape, bits, dtype=torch.int32).view(torch.float32)
        parameter.grad = None
        state = optimizer.state_dict()
        state["state"][0]["master_weight"] = lost
        optimizer.load_state_dict(state)
        assert parameter.isnan().all()
        parameter.data.fill_(zero)
        step(parameter, optimizer, 0.5)
        assert torch.equal(values(optimizer)[0], torch.full(parameter.shape, -0.5))


@pytest.mark.parametrize(
    "hold", [lambda g: g, Tensor.detach, lambda g: g.view(-1)[3:], lambda g: g.numpy()]
)
def test_a_gradient_that_somebody_holds_stays_as_it_is(hold: Callable[[Tensor], Any]) -> None:
    parameter, optimizer = decorated("bfloat16")
    held: list[Any] = []
    optimizer.register_step_pre_hook(
        lambda own, args, kwargs: held.append(hold(own.param_groups[0]["params"][0].grad))
    )
    for number in (1.0, 2.0, 3.0):
        step(parameter, optimizer, number)
    assert (
        [float(each.min()) for each in held]
        == [float(each.max()) for each in held]
        == [1.0, 2.0, 3.0]
    )


def test_a_graph_may_hold_a_gradient() -> None:
    parameter, optimizer = decorated("bfloat16")
    weight, graphs = torch.ones((), requires_grad=True), []

    def hook(own: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        with torch.enable_grad():
            graphs.append((own.param_groups[0]["params"][0].grad * weight).sum())

    optimizer.register_step_pre_hook(hook)
    for number in (1.0, 2.0):
        step(parameter, optimizer, number)
    assert [torch.autograd.grad(graph, weight)[0].item() for graph in graphs] == [63.0, 126.0]


def test_parameters_that_leave_and_come_back() -> None:
    parameter, optimizer = decorated("float16", lr=1.0)
    other = nn.Parameter(torch.zeros(3, dtype=torch.float16))
    optimizer.add_param_group({"params": [other]})
    before = values(optimizer)[0]
    other.grad = torch.ones_like(other)
    step(parameter, optimizer)
    parameter.requires_grad_(False)
    parameter.grad = None
    other.grad = torch.ones_like(other)
    optimizer.step()
    parameter.requires_grad_(True)
    other.grad = None
    step(parameter, optimizer)
    optimizer.param_groups[0]["params"].clear()
    other.grad = torch.ones_like(other)
    optimizer.step()
    assert torch.equal(other, torch.full((3,), -3.0, dtype=torch.float16))
    assert torch.equal(parameter, (before - 2.0).half())


def test_an_optimizer_is_let_go_with_all_that_it_keeps() -> None:
    parameter, optimizer = decorated("bfloat16")
    parameter.register_hook(lambda gradient, owner=optimizer: None)  # a reference cycle
    gone = weakref.ref(parameter)
    del parameter, optimizer
    gc.collect()
    assert gone() is None
