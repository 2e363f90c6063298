"""Rules hold for tensors that are not one dense array: sparse in each layout, and nested."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from unamp_torch.conformance.tensor_kinds import tensor_kinds

import unamp
from unamp import Policy, policy_region
from unamp.adapter.tensor_kinds import TensorKind

CALLS = [(kind, op) for kind in tensor_kinds() for op in kind.calls]
IDS = [f"{kind.name}-{op}" for kind, op in CALLS]


@pytest.mark.filterwarnings(
    "ignore:Sparse CSR tensor support is in beta", "ignore:The PyTorch API of nested tensors"
)
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
    with (
        unamp.autocast(dtype="bfloat16", allow=["sin"]),
        pytest.raises(TypeError, match="bfloat16 is not supported"),
    ):
        torch.sin(masked)


def test_a_quantized_tensor_is_left_alone() -> None:
    quantized = torch.quantize_per_tensor(torch.tensor([1.1, -0.7]), 0.1, 0, torch.qint8)
    with unamp.autocast(level="O3", dtype="bfloat16"):
        found = torch.relu(quantized)
    assert found.dtype is torch.qint8
    assert torch.equal(found.int_repr(), torch.relu(quantized).int_repr())


# --- products with sparse matrices ----------------------------------------------------------------

COMPRESSED: dict[str, Callable[[Tensor], Tensor]] = {
    "csr": Tensor.to_sparse_csr,
    "csc": Tensor.to_sparse_csc,
    "bsr": lambda dense: dense.to_sparse_bsr((2, 2)),
}
PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "addmm": lambda sparse, dense: torch.addmm(dense, sparse, dense),
    "linear": lambda sparse, dense: torch.nn.functional.linear(dense, sparse),
    "matmul": lambda sparse, dense: sparse @ dense,
    "mm": torch.mm,
}


def with_gradients(
    product: Callable[[Tensor, Tensor], Tensor], layout: str, region: AbstractContextManager[Any]
) -> list[Tensor]:
    """Multiply numbers that no low dtype has, in a region; compute the gradients outside."""
    sparse = {**COMPRESSED, "coo": Tensor.to_sparse}[layout](torch.eye(4) * 1.1).requires_grad_()
    dense = torch.linspace(0.1, 1.3, 16).reshape(4, 4).requires_grad_()
    with region:
        found = product(sparse, dense)
    grads = torch.autograd.grad(found.float().sum(), (sparse, dense))
    return [
        found,
        *(grad.to_dense() if grad.layout is not torch.strided else grad for grad in grads),
    ]


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
@pytest.mark.parametrize("level", ["O1", "O2", "O3", "OD"])
@pytest.mark.parametrize("layout", COMPRESSED)
@pytest.mark.parametrize("op", PRODUCTS)
def test_a_product_in_a_compressed_layout_raises_as_under_pytorch_s_own_and_computes_where_it_is_denied(  # noqa: E501
    op: str, layout: str, level: Any
) -> None:
    sparse, dense = COMPRESSED[layout](torch.eye(4) * 1.1), torch.rand(4, 4)
    for region in (torch.autocast("cpu", torch.bfloat16), policy_region(Policy(level, "bfloat16"))):
        with pytest.raises(NotImplementedError, match="not implemented for 'BFloat16'"), region:
            PRODUCTS[op](sparse, dense)
    with policy_region(Policy(level, "bfloat16", deny=op)):
        found = PRODUCTS[op](sparse, dense)
    assert torch.equal(found, PRODUCTS[op](sparse, dense))


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
@pytest.mark.parametrize("layout", ["csr", "coo"])
@pytest.mark.parametrize("preset", ["unamp", "torch-cpu", "torch-cuda"])
@pytest.mark.parametrize(
    "product", [torch.sparse.mm, lambda a, b: torch.sparse.addmm(b, a, b)], ids=["mm", "addmm"]
)
def test_the_sparse_functions_compute_in_float32_at_o1_where_pytorch_s_own_raises(
    product: Callable[[Tensor, Tensor], Tensor], preset: str, layout: str
) -> None:
    inside = with_gradients(product, layout, unamp.autocast("cpu", preset=preset))
    assert all(map(torch.equal, inside, with_gradients(product, layout, nullcontext())))
    with pytest.raises(RuntimeError):
        with_gradients(product, layout, torch.autocast("cpu", torch.bfloat16))


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
@pytest.mark.parametrize("op", PRODUCTS)
def test_a_dense_gradient_of_a_sparse_matrix_raises_as_under_pytorch_s_own_and_comes_where_it_is_denied(  # noqa: E501
    op: str,
) -> None:
    for region in (torch.autocast("cpu", torch.bfloat16), unamp.autocast("cpu")):
        with pytest.raises(RuntimeError, match="doesn't support converting"):
            with_gradients(PRODUCTS[op], "coo", region)
    for layout in ("coo", "csr"):
        inside = with_gradients(PRODUCTS[op], layout, unamp.autocast("cpu", deny=op))
        assert all(map(torch.equal, inside, with_gradients(PRODUCTS[op], layout, nullcontext())))
