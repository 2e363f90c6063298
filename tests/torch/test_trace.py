"""What `unamp.trace` reports about torch's operations."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from unamp_conformance.cases import cases

import unamp
from unamp import OpRecord, Policy, Rule, policy_region
from unamp.adapter import adapter_for

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def records(policy: Policy | None, call) -> list[OpRecord]:
    with unamp.trace() as trace:
        if policy is None:
            call()
        else:
            with policy_region(policy):
                call()
    return trace.records


def only(policy: Policy | None, call, op: str) -> OpRecord:
    (found,) = [r for r in records(policy, call) if r.op == op]
    return found


x = torch.rand(4, 4)


def test_a_low_operation() -> None:
    found = only(Policy("O1", "bfloat16"), lambda: x @ x, "matmul")
    assert (found.rule, found.inputs, found.compute, found.output) == (Rule.LOW, ("float32", "float32"), "bfloat16", "bfloat16")
    assert found.native == "aten::matmul"
    assert not found.emulated


@pytest.mark.parametrize("preset", ["unamp", "torch-cuda"])
def test_a_denied_operation(preset: str) -> None:
    found = only(Policy("O1", "float16", preset=preset), lambda: x.half().exp(), "exp")
    assert (found.rule, found.inputs, found.compute, found.output) == (Rule.FP32, ("float16",), "float32", "float32")


def test_an_operation_carried_out_by_native_autocast_is_seen_as_well() -> None:
    policy = Policy("O1", "bfloat16", preset="native")
    found = only(policy, lambda: F.linear(x, x), "linear")
    assert (found.rule, found.inputs[:2], found.compute, found.output) == (Rule.LOW, ("float32",) * 2, "bfloat16", "bfloat16")


def test_a_widest_operation() -> None:
    found = only(Policy("O1", "bfloat16"), lambda: torch.add(x, x.bfloat16()), "add")
    assert (found.rule, found.inputs, found.output) == (Rule.WIDEST, ("float32", "bfloat16"), "float32")
    found = only(Policy("O1", "bfloat16"), lambda: torch.cat([x.bfloat16(), x.bfloat16()]), "cat")
    assert (found.rule, found.inputs, found.compute, found.output) == (Rule.WIDEST, ("bfloat16",) * 2, "bfloat16", "bfloat16")


def test_an_emulated_operation() -> None:
    found = only(Policy("O1", "float16", allow="linalg_inv"), lambda: torch.linalg.inv(x + 4 * torch.eye(4)), "linalg_inv")
    assert found.emulated
    assert (found.compute, found.output) == ("float16", "float16")


def test_outside_regions_and_in_disabled_ones_the_rule_is_untouched() -> None:
    for policy in (None, Policy(enabled=False), Policy("O0")):
        found = only(policy, lambda: x.bfloat16() @ x.bfloat16(), "matmul")
        assert (found.rule, found.inputs, found.compute, found.output) == (
            Rule.UNTOUCHED,
            ("bfloat16",) * 2,
            "bfloat16",
            "bfloat16",
        )


def test_a_layer_is_recorded_with_what_it_calls_in_order() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Softmax(1))
    found = records(Policy("O1", "bfloat16"), lambda: model(x))
    assert [r.op for r in found] == ["linear", "relu", "linear", "softmax"]
    assert [r.compute for r in found] == ["bfloat16", "bfloat16", "bfloat16", "float32"]


def test_an_operation_is_one_record_whatever_it_is_made_of() -> None:
    for op, call in {
        "einsum": lambda: torch.einsum("ij,jk->ik", x, x),
        "cross_entropy": lambda: F.cross_entropy(x, torch.zeros(4, dtype=torch.long)),
        "scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(x[None], x[None], x[None]),
        "lstm": lambda: nn.LSTM(4, 4)(x[None]),
    }.items():
        found = records(Policy("O1", "bfloat16", deny="tanh"), call)
        assert [r.op for r in found] == [op]


def test_values_and_gradients_do_not_depend_on_being_traced() -> None:
    policy = Policy("O1", "bfloat16", allow="add")
    results = []
    for traced in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
        with policy_region(policy):
            if traced:
                with unamp.trace():
                    out = model(x) + 1
            else:
                out = model(x) + 1
        out.float().sum().backward()
        results.append([out, *(p.grad for p in model.parameters())])
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_trace_opened_inside_a_region_and_regions_opened_inside_a_trace() -> None:
    with unamp.autocast("cpu", allow="add"):
        with unamp.trace() as inner:
            y = x + x
        z = x + x
    assert y.dtype == z.dtype == BF16
    assert [r.op for r in inner.records] == ["add"]
    with unamp.trace() as trace:
        _ = x + x
        with unamp.autocast("cpu", "bfloat16", allow="add"):
            _ = x + x
        with unamp.autocast("cpu", "float16", allow="add"):
            _ = x + x
    assert [(r.rule, r.compute) for r in trace.records] == [
        (Rule.UNTOUCHED, "float32"),
        (Rule.LOW, "bfloat16"),
        (Rule.LOW, "float16"),
    ]


def test_operations_after_an_error_are_still_recorded() -> None:
    with unamp.trace() as trace, unamp.autocast("cpu"):
        with pytest.raises(RuntimeError):
            torch.mm(x, torch.rand(3, 3))
        torch.mm(x, x)
    assert [(r.op, r.compute) for r in trace.records if r.output][-1] == ("mm", "bfloat16")


def test_the_table_and_the_json_agree() -> None:
    with unamp.trace() as trace, unamp.autocast("cpu"):
        for _ in range(3):
            torch.mm(x, x)
    assert trace.table().splitlines()[1].split() == ["mm", "low", "float32", "float32", "bfloat16", "bfloat16", "3"]
    assert json.loads(trace.to_json())[0] == {
        "op": "mm",
        "native": "aten::mm",
        "rule": "low",
        "inputs": ["float32", "float32"],
        "compute": "bfloat16",
        "output": "bfloat16",
        "emulated": False,
    }


#: Operations for which nothing that computes is called with a floating input, or whose case's own dtype argument decides.
POLICIES = [Policy("O1", "bfloat16"), Policy("O1", "float16", preset="paddle"), Policy("O3", "bfloat16")]


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_the_trace_agrees_with_the_policys_decision(policy: Policy) -> None:
    operations = adapter_for("torch").operations()
    disagreeing, seen = {}, 0
    for op in sorted(operations.names() & cases().keys()):
        case = cases()[op]
        rule = policy.decide(op)
        if rule not in (Rule.LOW, Rule.FP32) or case.own_dtype:
            continue
        if op == "adaptive_log_softmax" and op not in (*policy.allow, *policy.deny):
            continue  # a declared gap: torch's layer writes float32 into a result of its input's dtype
        given = F32 if rule is Rule.LOW else BF16
        arrays = case.inputs(0)
        eligible = case.eligible(arrays)
        tensors = [operations.tensor(a) for a in arrays]
        tensors = [t.to(given) if n in eligible else t for n, t in enumerate(tensors)]
        try:
            with unamp.trace() as trace, policy_region(policy):
                case.call(operations[op], tensors)
        except RuntimeError as error:
            disagreeing[op] = error
            continue
        own = [r for r in trace.records if r.op == op]
        if not own:
            continue
        seen += 1
        wanted = policy.dtype if rule is Rule.LOW else "float32"
        if any(r.rule is not rule or (r.compute or wanted) != wanted for r in own):
            disagreeing[op] = own
    assert not disagreeing
    assert seen > {"O1": 40, "O3": 200}[policy.level]
