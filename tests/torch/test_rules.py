"""Lists accept every spelling; levels, wide results and bans do what they say."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from unamp_torch import plans
from unamp_torch.facts import facts
from unamp_torch.listing import operators

import unamp
from unamp import Policy, policy_region
from unamp.vocabulary import vocabulary

F32, F16, BF16, F64 = torch.float32, torch.float16, torch.bfloat16, torch.float64
LOW = {"float16": F16, "bfloat16": BF16}

each_dtype = pytest.mark.parametrize("dtype", ["bfloat16", "float16"])


def mat(dtype: torch.dtype = F32) -> Tensor:
    return (torch.rand(4, 4) + 0.5).to(dtype)


def spelled(entry: Any) -> str:
    """Return a test's name for a value: the same in every process, unlike an address."""
    return re.sub(" at 0x[0-9a-f]+", "", str(entry))


def test_what_a_level_leaves_alone_keeps_its_meaning() -> None:
    x, low = mat(), mat(BF16)
    with policy_region(Policy("O3", "bfloat16")):
        for shaped in (
            x.t(),
            x.reshape(2, 8),
            x[1:],
            x.view(16),
            x.unsqueeze(0),
            x.clone(),
            x.contiguous(),
            x.expand(2, 4, 4),
        ):
            assert shaped.dtype == F32
        assert x.to(F64).dtype == x.double().dtype == F64
        assert low.float().dtype == low.to(F32).dtype == x.type(F32).dtype == F32
        assert x.half().dtype == F16
        made = (
            torch.zeros(2),
            torch.ones_like(x),
            torch.rand(2),
            torch.randn_like(x),
            torch.tensor([1.0]),
            x.new_ones(2),
        )
        assert {t.dtype for t in made} == {F32}
        assert (x > x).dtype == torch.bool
        assert torch.equal(x.detach(), x)


# --- lists by names and by the framework's own objects --------------------------------------------


def add_is(policy_args: dict[str, Any], expected: torch.dtype) -> None:
    with unamp.autocast("cpu", **policy_args):
        assert (mat() + mat()).dtype == expected
        assert torch.add(mat(), mat()).dtype == expected
        assert mat().add(mat()).dtype == expected


@pytest.mark.parametrize(
    "entry",
    [
        "add",
        "torch.add",
        "torch.Tensor.add",
        "elementwise_add",
        "AddV2",
        torch.add,
        torch.Tensor.add,
        torch.ops.aten.add,
        torch.ops.aten.add.Tensor,
    ],
    ids=spelled,
)
def test_lists_take_every_spelling_of_an_operation(entry: Any) -> None:
    add_is({"allow": entry}, BF16)
    add_is({"allow": [entry]}, BF16)
    add_is({"deny": [entry, "mul"]}, F32)


@pytest.mark.parametrize(
    ("entry", "op"),
    [
        (F.linear, "linear"),
        (nn.Linear, "linear"),
        (torch.nn.functional.conv2d, "conv2d"),
        (nn.Conv2d, "conv2d"),
        (torch.ops.aten.linear, "linear"),
        (torch.ops.aten.mm.default, "mm"),
        (torch.matmul, "matmul"),
        (torch.Tensor.matmul, "matmul"),
        (torch.Tensor.__matmul__, "matmul"),
        (F.softmax, "softmax"),
        (torch.softmax, "softmax"),
        (nn.Softmax, "softmax"),
        (F.cross_entropy, "cross_entropy"),
        (nn.CrossEntropyLoss, "cross_entropy"),
        (F.layer_norm, "layer_norm"),
        (nn.LayerNorm, "layer_norm"),
        (nn.BatchNorm2d, "batch_norm"),
        (nn.LSTM, "lstm"),
        (nn.GRU, "gru"),
        (nn.MultiheadAttention, "multi_head_attention"),
        (F.scaled_dot_product_attention, "scaled_dot_product_attention"),
        (nn.Embedding, "embedding"),
        (torch.linalg.vector_norm, "linalg_vector_norm"),
        (torch.fft.fft, "fft_fft"),
        (torch.einsum, "einsum"),
        (torch.special.expm1, "expm1"),
    ],
    ids=spelled,
)
def test_lists_take_torchs_own_functions_layers_and_operators(entry: Any, op: str) -> None:
    assert Policy(allow=entry).allow == Policy(allow=op).allow
    assert Policy(deny=[entry]).deny == Policy(deny=[op]).deny


@pytest.mark.parametrize(
    "entry",
    [len, object(), nn.Module, mat(), nn.Linear(2, 2), 3, torch.float16],
    ids=lambda e: type(e).__name__,
)
def test_lists_refuse_what_is_no_operation(entry: Any, native_state: Any) -> None:
    before = native_state()
    with pytest.raises((TypeError, ValueError)):
        unamp.autocast("cpu", allow=[entry])
    assert native_state() == before


# --- widen_results --------------------------------------------------------------------------------


@each_dtype
@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_widened_results_are_the_low_results_in_float32(level: str, dtype: str) -> None:
    policy, low = Policy(level, dtype, widen_results=True), LOW[dtype]
    x, y = mat(), mat()
    with policy_region(policy):
        assert torch.equal(x @ y, (x.to(low) @ y.to(low)).float())
        assert (
            (x @ y).dtype
            == F.linear(x, y, y[0]).dtype
            == torch.einsum("ij,jk->ik", x, y).dtype
            == F32
        )
        assert F.softmax(x @ y, 1).dtype == F32
        assert (x.to(low) @ y.to(low)).dtype == F32
        if level == "O1":
            assert torch.equal(x + y, x + y.clone())
        else:
            assert torch.equal(x + y, (x.to(low) + y.to(low)).float())


def test_widened_results_carry_gradients_to_float32_leaves() -> None:
    x, w = mat(), mat().requires_grad_()
    with policy_region(Policy("O1", "bfloat16", widen_results=True)):
        out = F.linear(x, w).relu().sum()
    out.backward()
    assert out.dtype == w.grad.dtype == F32
    reference = torch.ones(4, 4).bfloat16().t() @ x.bfloat16()
    assert torch.equal(w.grad, reference.float())


def test_widened_tuples() -> None:
    with policy_region(Policy("O3", "bfloat16", widen_results=True)):
        values, indices = torch.topk(mat(), 2)
        out, (h, c) = nn.LSTM(4, 4)(mat()[None])
    assert (values.dtype, indices.dtype) == (F32, torch.int64)
    assert out.dtype == h.dtype == c.dtype == F32


# --- bans -----------------------------------------------------------------------------------------


def test_a_banned_operation_raises_with_advice_and_only_there() -> None:
    x, y = torch.rand(4), torch.rand(4)
    with unamp.autocast("cpu", preset="torch-cuda"):
        with pytest.raises(unamp.BannedOperation, match="binary_cross_entropy_with_logits"):
            F.binary_cross_entropy(x, y)
        assert F.binary_cross_entropy_with_logits(x, y).dtype == F32
        with unamp.autocast("cpu", preset="torch-cuda", enabled=False):
            assert F.binary_cross_entropy(x, y).dtype == F32
        assert F.binary_cross_entropy(x.double(), y.double()).dtype == F64
    with unamp.autocast("cpu"):
        assert F.binary_cross_entropy(x.bfloat16(), y.bfloat16()).dtype == F32
    with unamp.autocast("cpu", preset="torch-cuda", deny="binary_cross_entropy"):
        assert F.binary_cross_entropy(x.bfloat16(), y.bfloat16()).dtype == F32


@pytest.mark.parametrize("device", ["cpu", "cuda", "meta"])
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_plan_with_lists_has_the_actions_that_all_its_rules_come_to(
    level: Any, device: str
) -> None:
    """Check a plan with lists, which is derived from the plan without them.

    The lists name single operations, operators that choose between operations, and the chosen ones.
    """
    chosen = {op for choice, others in facts().chooses.items() for op in (choice, *others)}
    named = sorted(chosen.union(list(vocabulary())[::29]))
    for op in (op for op in named if not vocabulary()[op].is_cast):
        for policy in (Policy(level, allow=op), Policy(level, deny=op, preset="torch-cuda")):
            table = plans._own_actions(policy, device)
            for each, rule in policy.rules.items():
                for operator in operators(each):
                    by_parts = plans.follows_parts(policy, each)
                    action = None if by_parts else plans._action(policy, rule, operator, device)
                    assert spelled(table.get(operator.name)) == spelled(action), operator.name
