"""`unamp.trace(shadow=...)` records the shadows of torch's operations."""

from __future__ import annotations

import shadowed
import torch
import torch.nn.functional as F
from shadowed import *  # noqa: F403
from stateful import Net
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import unamp
from unamp.adapter.records import Shadow


def test_a_shadow_changes_nothing() -> None:
    def run(trace):
        torch.manual_seed(3)
        net, x = Net(), torch.randn(6, 8, requires_grad=True)
        with trace:
            loss = net(x)
        loss.backward()
        grads = [x.grad, *(p.grad for p in net.parameters())]
        return [t.detach().numpy() for t in (loss, *grads, *net.buffers(), torch.rand(4))]

    trace = shadowed.a_shadow_changes_nothing(run, "float8_e4m3", "float8_e5m2_rows")
    left_out = {
        record.op: record.shadow.left_out for record in trace.records if record.shadow.left_out
    }
    assert left_out == dict.fromkeys(
        ("rrelu", "lstm", "scaled_dot_product_attention"), "it draws random numbers"
    )


def test_faults_lead() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    with torch.no_grad():
        net[0].weight.fill_(1.0)
        net[0].bias.zero_()
        net[2].weight.fill_(2e3)
        net[2].bias.zero_()
    shadowed.faults_lead(torch.from_numpy, torch.exp, torch.sum, net, "Sequential.2")


def test_a_region_reaches_no_shadow() -> None:
    """A shadow is low where the policy keeps float32, and its parts follow no rule."""
    x = torch.linspace(0, 30, 64)
    with unamp.trace(shadow="float16") as plain:
        x.exp()
    with (
        unamp.trace(shadow="float16") as inside,
        unamp.autocast("cpu", torch.bfloat16, deny="exp"),
        torch.autocast("cpu"),
    ):
        x.exp()
    assert [r.shadow for r in inside.records] == [r.shadow for r in plain.records]


def shadow_of(call, op: str) -> Shadow:
    with unamp.trace(shadow="float16") as trace:
        call()
    (found,) = {r.shadow for r in trace.records if r.op == op}
    return found


def test_what_cannot_be_computed_twice_is_said() -> None:
    x = torch.rand(4, 4)
    with FlopCounterMode(display=False) as counter:
        found = shadow_of(lambda: x @ x, "matmul")
    assert found.left_out.endswith("FlopCounterMode would see it run twice")
    assert counter.get_total_flops() == 2 * 4**3
    assert "without plain numbers" in shadow_of(lambda: torch.vmap(torch.exp)(x), "exp").left_out
    assert "named the dtype" in shadow_of(lambda: torch.sum(x, dtype=torch.float32), "sum").left_out
    assert (
        "sparse"
        in shadow_of(lambda: F.embedding(torch.tensor([1]), x, sparse=True), "embedding").left_out
    )
    assert (
        shadow_of(lambda: x.double().exp(), "exp").left_out
        == "it has an input in float64, which no rule casts"
    )
    assert shadow_of(lambda: x.argmax(), "argmax").left_out == "it has no floating result"
