"""Tensors that are not one dense array: sparse in each layout, and nested."""

from __future__ import annotations

import pytest
import torch
from unamp_torch.conformance.tensor_kinds import tensor_kinds

import unamp
from unamp import Policy, policy_region
from unamp.adapter.tensor_kinds import TensorKind

CALLS = [(kind, op) for kind in tensor_kinds() for op in kind.calls]
IDS = [f"{kind.name}-{op}" for kind, op in CALLS]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(("kind", "op"), CALLS, ids=IDS)
def test_an_operation_on_a_kind_of_tensor_is_traced(kind: TensorKind, op: str) -> None:
    with policy_region(Policy("O1", "bfloat16", preset="none", allow=[op])), unamp.trace() as trace:
        kind.calls[op](kind.make("float32", "cpu"))
    assert (op, "bfloat16") in [(record.op, record.compute) for record in trace.records]


def test_masked_tensors_follow_rules_in_float16_and_have_no_bfloat16() -> None:
    values = torch.tensor([1.1, 0.7, 0.3])
    masked = torch.masked.masked_tensor(values, torch.tensor([True, False, True]))
    with unamp.autocast(dtype="float16", allow=["sin"]):
        assert torch.sin(masked).dtype is torch.float16
    with unamp.autocast(dtype="bfloat16", allow=["sin"]), pytest.raises(TypeError, match="bfloat16 is not supported"):
        torch.sin(masked)


def test_a_quantized_tensor_is_left_alone() -> None:
    quantized = torch.quantize_per_tensor(torch.tensor([1.1, -0.7]), 0.1, 0, torch.qint8)
    with unamp.autocast(level="O3", dtype="bfloat16"):
        found = torch.relu(quantized)
    assert found.dtype is torch.qint8
    assert torch.equal(found.int_repr(), torch.relu(quantized).int_repr())
