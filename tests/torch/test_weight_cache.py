"""A parameter is cast once in a region, and the cast follows the parameter."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unamp import Policy, policy_region
from unamp.adapter import major_minor

F16, BF16 = torch.float16, torch.bfloat16


def history(out: Tensor) -> list[str]:
    found, stack, seen = [], [out.grad_fn], set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        found.append(type(node).__name__)
        stack += [parent for parent, _ in node.next_functions]
    return found


#: Policies whose casts native autocast makes (with its own cache), and whose casts unamp's kernels
#: make.
CACHING = [
    Policy("O1", "bfloat16", preset="native"),
    Policy("O1", "bfloat16", preset="torch-cpu"),
    Policy("O1", "bfloat16"),
    Policy("O1", "bfloat16", widen_results=True),
    Policy("O3", "bfloat16"),
]


@pytest.mark.parametrize("policy", CACHING, ids=repr)
def test_a_parameter_is_cast_once_in_the_outermost_region(policy: Policy) -> None:
    weight, x = nn.Parameter(torch.rand(4, 4)), torch.rand(4, 4)

    def twice() -> int:
        first = F.linear(x, weight)
        with policy_region(policy):
            second = F.linear(x, weight)
        return history(torch.stack([first.float(), second.float()])).count("ToCopyBackward0")

    with policy_region(policy):
        cached = twice()
    with policy_region(policy.replace(cache=False)):
        with policy_region(policy.replace(cache=False)):
            pass
        first, second = F.linear(x, weight), F.linear(x, weight)
        uncached = history(torch.stack([first.float(), second.float()])).count("ToCopyBackward0")
    # Before 2.11 native autocast's cache keeps casts without their gradients, so unamp keeps none.
    assert uncached - cached == int(major_minor(torch.__version__) >= (2, 11))


def test_casts_are_dropped_on_exit() -> None:
    def cast(policy: Policy) -> weakref.ref[nn.Parameter]:
        weight = nn.Parameter(torch.rand(4, 4))
        with policy_region(policy):
            F.linear(torch.rand(4, 4), weight)
            with policy_region(policy):
                F.linear(torch.rand(4, 4), weight)
        return weakref.ref(weight)

    gone = {policy: cast(policy) for policy in CACHING}
    gc.collect()
    assert [policy for policy, weight in gone.items() if weight() is not None] == []


@pytest.mark.parametrize("policy", CACHING, ids=repr)
def test_no_grad_then_grad_on_the_same_weight(policy: Policy) -> None:
    weight, x = nn.Parameter(torch.rand(4, 4)), torch.rand(4, 4)
    with policy_region(policy):
        with torch.no_grad():
            first = F.linear(x, weight)
        second = F.linear(x, weight)
        with torch.inference_mode():
            F.linear(x, weight)
        third = F.linear(x, weight)
    assert not first.requires_grad
    (second.float().sum() + third.float().sum()).backward()
    assert weight.grad is not None
    assert torch.allclose(weight.grad, 2 * x.sum(0).expand(4, 4), rtol=0.02)


@pytest.mark.parametrize("policy", CACHING, ids=repr)
def test_a_frozen_then_trained_weight_gets_its_gradient(policy: Policy) -> None:
    weight, x = nn.Parameter(torch.rand(4, 4), requires_grad=False), torch.rand(4, 4)
    with policy_region(policy):
        F.linear(x, weight)
        weight.requires_grad_()
        F.linear(x, weight).float().sum().backward()
    assert weight.grad is not None


def test_other_policies_in_one_region_do_not_share_casts_of_another_dtype() -> None:
    model, x = nn.Linear(4, 4), torch.rand(2, 4)
    with policy_region(Policy("O3", "bfloat16")):
        assert model(x).dtype == BF16
        with policy_region(Policy("O3", "float16")):
            out = model(x)
            assert torch.equal(out, F.linear(x.half(), model.weight.half(), model.bias.half()))
        with policy_region(Policy("O1", "float16", preset="native")):
            assert model(x).dtype == F16
        assert model(x).dtype == BF16
