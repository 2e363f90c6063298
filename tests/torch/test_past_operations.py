"""An operation is one whole where PyTorch calls its inner operators directly, too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from unamp import Policy, policy_region

F32 = torch.float32
LOW = {"float16": torch.float16, "bfloat16": torch.bfloat16}

each_dtype = pytest.mark.parametrize("dtype", LOW)


def attention(policy: Policy | None, low: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """Return the scaled dot product attention of a jagged tensor, and the gradient."""
    torch.manual_seed(0)
    parts = [torch.randn(3, 8), torch.randn(5, 8)]
    x = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    with policy_region(policy or Policy(enabled=False)):
        heads = (x if low is None else x.to(low)).unflatten(-1, [2, 4]).transpose(1, 2)
        result = F.scaled_dot_product_attention(heads, heads, heads).values()
    result.float().sum().backward()
    return result, x.grad.values()


@each_dtype
@pytest.mark.parametrize("level", ["O1", "O2", "O3", "OD"])
def test_attention_of_jagged_tensors_runs_low_as_a_whole(level: str, dtype: str) -> None:
    result, gradient = attention(Policy(level, dtype, deny=["add"] if level != "O3" else ()))
    whole, its_gradient = attention(None, LOW[dtype])
    assert result.dtype is LOW[dtype]
    assert torch.equal(result, whole)
    assert gradient.dtype is F32
    assert torch.allclose(gradient, its_gradient, rtol=2**-6, atol=2**-6)


@each_dtype
def test_attention_of_jagged_tensors_that_is_denied_is_float32(dtype: str) -> None:
    result, gradient = attention(Policy("O1", dtype, deny="scaled_dot_product_attention"))
    exact, its_gradient = attention(None)
    assert torch.equal(result, exact), "no input was low in between"
    assert torch.equal(gradient, its_gradient)


@each_dtype
def test_the_gap_of_widened_results_is_pytorchs_own(dtype: str) -> None:
    with pytest.raises(RuntimeError, match="must be contiguous"):
        attention(Policy("O1", dtype, widen_results=True))
    x = torch.nested.as_nested_tensor([torch.randn(3, 2, 4), torch.randn(5, 2, 4)]).requires_grad_()
    heads = x.transpose(1, 2).contiguous().to(LOW[dtype])
    widened = torch._scaled_dot_product_attention_math(heads, heads, heads)[0].float()
    with pytest.raises(RuntimeError, match="must be contiguous"):
        widened.transpose(1, 2).contiguous().values().sum().backward()


def masked_index(x: Tensor) -> Tensor:
    return torch.ops.aten._unsafe_masked_index(
        x, torch.tensor([True, False, True, True]), [torch.arange(4)], 0.5
    )


def put(x: Tensor) -> Tensor:
    mask, values = torch.tensor([True, False, True, True]), torch.ones(4, 4, dtype=x.dtype)
    return torch.ops.aten._unsafe_masked_index_put_accumulate(x, mask, [torch.arange(4)], values)


@each_dtype
@pytest.mark.parametrize("call", [masked_index, put])
@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_masked_indexing_has_its_gradient(level: str, call: Any, dtype: str) -> None:
    x = torch.randn(4, 4, requires_grad=True)
    with policy_region(Policy(level, dtype)):
        result = call(x)
    result.float().sum().backward()
    assert x.grad is not None
    assert x.grad.dtype is F32
    twin = x.detach().to(result.dtype).requires_grad_()
    assert torch.allclose(result.float(), call(twin).float(), atol=2**-6)


@each_dtype
def test_the_gap_of_backward_operators_that_are_called_by_hand_is_pytorchs_own(dtype: str) -> None:
    x = torch.randn(1, 1, 4, 4)
    window = [2, 2], [2, 2], [0, 0], [1, 1], False

    def by_hand(low: torch.dtype | None = None) -> None:
        pooled, indices = F.max_pool2d(x if low is None else x.to(low), 2, return_indices=True)
        torch.ops.aten.max_pool2d_with_indices_backward(
            torch.ones_like(pooled), x, *window, indices
        )

    for run in (lambda: by_hand(LOW[dtype]), policy_region(Policy("O2", dtype))(by_hand)):
        with pytest.raises(RuntimeError, match="dtype"):
            run()


@pytest.mark.parametrize("preset", ["torch-cpu", "unamp", "native"])
def test_a_hessian_vector_product_through_a_norm(preset: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 4))
    x, tangent = torch.randn(3, 4), torch.randn(3, 4)

    def loss(x: Tensor) -> Tensor:
        return model(x).float().square().sum()

    exact = torch.func.jvp(torch.func.grad(loss), (x,), (tangent,))[1]
    with policy_region(Policy("O1", "bfloat16", preset=preset)):
        found = torch.func.jvp(torch.func.grad(loss), (x,), (tangent,))[1]
    assert found.dtype is F32
    assert torch.allclose(found, exact, rtol=0.2, atol=0.2 * float(exact.abs().max()))
