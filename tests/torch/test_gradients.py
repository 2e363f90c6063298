"""`unamp.trace(gradients=True)` records the gradients of torch's operations."""

from __future__ import annotations

import sys
from pathlib import Path

import differentiated
import pytest
import torch
from differentiated import *  # noqa: F403
from ranks import said_by_ranks
from stateful import Net
from torch import nn
from torch.utils.checkpoint import checkpoint

import unamp


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 4)
    )


def rows():
    return torch.rand(4, 8)


def test_a_layer_is_named() -> None:
    net = network()
    with torch.no_grad():
        net[3].weight.fill_(1e-6)
    differentiated.a_layer_is_named(lambda: net(torch.rand(4, 8)).sum().backward(), "Sequential.2")


def test_parameters_have_theirs() -> None:
    net = network()

    def run():
        net.zero_grad()
        (
            net(torch.linspace(-1.0, 1.0, 32).reshape(4, 8)).sum()
            + net(torch.ones(4, 8)).square().sum()
        ).backward()
        return {f"Sequential.{name}": each.grad.numpy() for name, each in net.named_parameters()}

    differentiated.parameters_have_theirs(run)
    assert not net[0].weight._backward_hooks


def test_parameters_that_the_first_call_makes_have_theirs() -> None:
    told, net = [], nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    for _ in range(2):
        with unamp.trace(gradients=True) as trace:
            net(torch.arange(8.0).reshape(4, 2)).square().sum().backward()
        told.append([each.parameter for each in trace.gradients if each.parameter])
    assert sorted(told[0]) == [
        f"Sequential.{name}" for name in ("0.bias", "0.weight", "1.bias", "1.weight")
    ]
    assert told[0] == told[1]


def test_what_a_backward_pass_gives_a_parameter_is_recorded_and_not_what_it_holds() -> None:
    net, embedding = nn.Linear(2, 1, bias=False), nn.Embedding(3, 2, sparse=True)
    with unamp.trace(gradients=True) as trace:
        for _ in range(2):
            net(embedding(torch.tensor([1]))).sum().backward()
    assert (
        trace.gradient_table().count(
            "parameter Embedding.weight (2 times): its gradient has no plain numbers"
        )
        == 1
    )
    first, second = (each.values for each in trace.gradients if each.parameter == "Linear.weight")
    assert first == second


def test_layers_that_are_not_ready_or_not_trained_have_none() -> None:
    with torch.inference_mode():
        inferred = nn.Linear(8, 4)
    net = nn.Sequential(nn.Linear(8, 8), nn.LazyLinear(4))
    net[0].weight.requires_grad = False
    with unamp.trace(gradients=True) as trace:
        inferred(torch.rand(2, 8))
        net(torch.rand(2, 8)).sum().backward()
        torch.func.functional_call(
            net, {"0.bias": net[0].bias * 2.0}, torch.rand(2, 8)
        ).sum().backward()
    assert {each.parameter for each in trace.gradients if each.parameter} == {
        "Sequential.0.bias", "Sequential.1.weight", "Sequential.1.bias",
    }  # fmt: skip


@pytest.mark.parametrize(
    "region", [{"enabled": False}, {"dtype": "bfloat16"}, {"dtype": "bfloat16", "level": "O3"}]
)
def test_a_trace_changes_nothing(region) -> None:
    def run(trace):
        torch.manual_seed(3)
        net, x = Net(), torch.randn(6, 8, requires_grad=True)
        with trace:
            with unamp.autocast(**region):
                loss = net(x)
            loss.backward()
        grads = [x.grad, *(p.grad for p in net.parameters())]
        return [t.detach().float().numpy() for t in (loss, *grads, *net.buffers(), torch.rand(4))]

    differentiated.gradients_do_not_depend_on_a_trace(run)


def test_hooks_vanish_with_the_trace() -> None:
    with unamp.trace(gradients=True):
        y = torch.rand(3, requires_grad=True).exp()
        assert y._backward_hooks
    assert not y._backward_hooks


def test_what_needs_no_gradient_has_none() -> None:
    with unamp.trace(gradients=True) as trace:
        with torch.no_grad():
            network()(torch.rand(4, 8))
        torch.rand(3, requires_grad=True).exp().sum().backward()
    assert [trace.records[each.record].op for each in trace.gradients] == ["sum", "exp"]


def test_every_result_and_every_pass_has_its_own() -> None:
    """`max` has one floating result, `std_mean` two.

    A graph that is kept may run backward twice.
    """
    x = torch.rand(3, 5, requires_grad=True)
    with unamp.trace(gradients=True) as trace:
        _, mean = torch.std_mean(x)
        mean.backward(retain_graph=True)
        mean.backward()
    assert [(each.record, each.result) for each in trace.gradients] == [(0, 1), (0, 1)]


def test_second_derivatives_are_seen_and_right() -> None:
    x = torch.tensor([2.0], requires_grad=True)
    with unamp.trace(gradients=True) as trace:
        (first,) = torch.autograd.grad(x.pow(3).sum(), x, create_graph=True)
        first.sum().backward()
    assert x.grad is not None
    assert x.grad.item() == 12.0
    assert len(trace.gradients) > 2


def test_a_forward_that_runs_again_is_recorded_where_it_runs() -> None:
    x = torch.rand(4, 8, requires_grad=True)
    net = network()
    with unamp.trace(gradients=True) as trace:
        checkpoint(net, x, use_reentrant=False).sum().backward()
    ops = {trace.records[each.record].op for each in trace.gradients if each.record is not None}
    assert {"linear", "sum"} <= ops


def test_what_has_no_plain_numbers_is_named() -> None:
    with unamp.trace(gradients=True) as trace:
        torch.func.grad(lambda x: x.exp().sum())(torch.rand(3))
        table = torch.rand(5, 2, requires_grad=True)
        (torch.sparse.mm(torch.eye(5).to_sparse(), table)).sum().backward()
    assert "inside of a transform of torch.func" in trace.gradient_table()


def test_a_compiled_function_runs_eagerly_and_is_seen() -> None:
    compiled = torch.compile(lambda x: x.exp().sum(), backend="eager")
    with unamp.trace(gradients=True) as trace:
        compiled(torch.rand(3, requires_grad=True)).backward()
    assert [trace.records[each.record].op for each in trace.gradients] == ["sum", "exp"]


@pytest.mark.beside_kernels
def test_the_chosen_rank_records(tmp_path: Path) -> None:
    """The launcher's rank is ignored where the processes have been numbered since."""
    script = Path(__file__).with_name("ranked.py")
    commands = [
        ["env", "RANK=0", sys.executable, str(script), str(rank), str(tmp_path / "store")]
        for rank in range(2)
    ]
    assert said_by_ranks(commands) == [[0, 0], [1, 1]]
