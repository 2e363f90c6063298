"""A composite follows its own rule as a whole, not the rules of its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unamp
from unamp import Policy, Rule, policy_region

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
LOW = {"float16": F16, "bfloat16": BF16}

each_dtype = pytest.mark.parametrize("dtype", ["bfloat16", "float16"])


def mat(dtype: torch.dtype = F32) -> Tensor:
    return (torch.rand(4, 4) + 0.5).to(dtype)


#: Functions that torch computes with other operations, which have rules of their own. The
#: function's rule holds.
COMPOSITES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "normalize": lambda x, y: F.normalize(x),
    "norm": lambda x, y: torch.norm(x),
    "cross_entropy": lambda x, y: F.cross_entropy(x, torch.zeros(4, dtype=torch.long)),
    "softmin": lambda x, y: F.softmin(x, 1),
    "pairwise_distance": lambda x, y: F.pairwise_distance(x, y),
    "cosine_similarity": lambda x, y: F.cosine_similarity(x, y),
    "einsum": lambda x, y: torch.einsum("ij,jk->ik", x, x),
    "tensordot": lambda x, y: torch.tensordot(x, x, 1),
    "inner": lambda x, y: torch.inner(x, x),
    "linalg_multi_dot": lambda x, y: torch.linalg.multi_dot([x, y, x]),
    "chain_matmul": lambda x, y: torch.chain_matmul(x, y, x),
    "matrix_power": lambda x, y: torch.matrix_power(x, 3),
    "bilinear": lambda x, y: F.bilinear(x, x, torch.ones(1, 4, 4, dtype=x.dtype)),
    "interpolate": lambda x, y: F.interpolate(x[None, None], scale_factor=2.0, mode="bilinear"),
    "local_response_norm": lambda x, y: F.local_response_norm(x[None], 2),
    "lp_pool1d": lambda x, y: F.lp_pool1d(x[None], 2.0, 2),
    "lp_pool2d": lambda x, y: F.lp_pool2d(x[None], 2.0, 2),
    "multilabel_soft_margin_loss": lambda x, y: F.multilabel_soft_margin_loss(
        x, torch.ones(4, 4, dtype=x.dtype)
    ),
    "gaussian_nll_loss": lambda x, y: F.gaussian_nll_loss(x, y, y),
    "triplet_margin_with_distance_loss": lambda x, y: F.triplet_margin_with_distance_loss(
        x, y, x[:, :1]
    ),
    "gumbel_softmax": lambda x, y: F.gumbel_softmax(x),
    "tanhshrink": lambda x, y: F.tanhshrink(x),
    "softsign": lambda x, y: F.softsign(x),
    "linalg_norm": lambda x, y: torch.linalg.norm(x),
    "kl_div": lambda x, y: F.kl_div(x, y, reduction="sum"),
    "huber_loss": lambda x, y: F.huber_loss(x, y),
    "group_norm": lambda x, y: F.group_norm(x, 2),
    "instance_norm": lambda x, y: F.instance_norm(x[None]),
    "cov": lambda x, y: torch.cov(x),
    "cdist": lambda x, y: torch.cdist(x, x),
    "trapezoid": lambda x, y: torch.trapezoid(x),
    "logit": lambda x, y: torch.logit(x, eps=0.1),
    "hardswish": lambda x, y: F.hardswish(x),
    "addmm": lambda x, y: torch.addmm(x, x, x),
    "baddbmm": lambda x, y: torch.baddbmm(x[None], x[None], x[None]),
    "pixel_shuffle": lambda x, y: F.pixel_shuffle(x[:, None, None].permute(3, 0, 1, 2), 2),
    "avg_pool1d": lambda x, y: F.avg_pool1d(x[None], 2),
    "adaptive_avg_pool2d": lambda x, y: F.adaptive_avg_pool2d(x[None], 2),
    "embedding": lambda x, y: F.embedding(torch.tensor([0, 1]), x),
    "outer": lambda x, y: torch.outer(x[0], x[1]),
    "kron": lambda x, y: torch.kron(x, x),
    "std": lambda x, y: torch.std(x),
    "var": lambda x, y: torch.var(x),
    "logsumexp": lambda x, y: torch.logsumexp(x, 1),
    "scaled_dot_product_attention": lambda x, y: F.scaled_dot_product_attention(
        x[None, None], x[None, None], x[None, None]
    ),
}


@each_dtype
@pytest.mark.parametrize("op", COMPOSITES)
def test_an_allowed_composite_is_low_whatever_it_is_made_of(op: str, dtype: str) -> None:
    x, y = mat(), mat()
    denied = [
        d for d in ("exp", "sum", "bmm", "mm", "pow", "linalg_vector_norm", "softmax") if d != op
    ]
    with unamp.autocast("cpu", dtype, allow=op, deny=denied):
        torch.manual_seed(1)
        result = COMPOSITES[op](x, y)
    assert result.dtype == LOW[dtype]
    torch.manual_seed(1)
    reference = COMPOSITES[op](x, y)
    assert torch.allclose(result.float(), reference, rtol=0.05, atol=0.05)


@each_dtype
@pytest.mark.parametrize("preset", ["paddle", "none"])
def test_parts_below_autograd_do_not_follow_native_lists(preset: str, dtype: str) -> None:
    theta = torch.tensor([[[1.0, 0.0, 2**-10], [0.0, 1.0, 0.0]]])
    with unamp.autocast("cpu", dtype, level="O1", preset=preset):
        grid = F.affine_grid(theta, [1, 1, 4, 4], align_corners=False)
    assert grid.dtype == F32
    assert torch.equal(grid, F.affine_grid(theta, [1, 1, 4, 4], align_corners=False))


WITH_OUTPUT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "normalize": lambda x, out: F.normalize(x, out=out),
    "normalize, by position": lambda x, out: F.normalize(x, 2.0, 1, 1e-12, out),
    "norm": lambda x, out: torch.norm(x, dim=1, keepdim=True, out=out),
}


@pytest.mark.parametrize("written", [F32, BF16], ids=str)
@pytest.mark.parametrize(
    "policy",
    [
        Policy("O1", "bfloat16", allow=["norm", "normalize"]),
        Policy("O1", "bfloat16", deny=["norm", "normalize"]),
        Policy("O2", "bfloat16", preset="paddle"),
    ],
    ids=str,
)
@pytest.mark.parametrize("call", WITH_OUTPUT.values(), ids=WITH_OUTPUT)
def test_an_explicit_output_of_a_function_in_python_is_written_to(
    call: Callable[[Tensor, Tensor], Tensor], policy: Policy, written: torch.dtype
) -> None:
    x = mat(written)
    out, expected = torch.zeros(0, dtype=written), torch.zeros(0, dtype=written)
    call(x, expected)
    with policy_region(policy):
        assert call(x, out) is out
    assert torch.equal(out, expected)


@each_dtype
@pytest.mark.parametrize("hard", [False, True])
def test_the_noise_of_gumbel_softmax_is_float32_at_o2(hard: bool, dtype: str) -> None:
    logits = mat(LOW[dtype]).requires_grad_()
    with unamp.autocast("cpu", dtype, level="O2"):
        torch.manual_seed(1)
        result = F.gumbel_softmax(logits, tau=0.5, hard=hard)
    torch.manual_seed(1)
    exact = F.gumbel_softmax(logits.detach().float(), tau=0.5, hard=hard)
    assert result.dtype == F32
    assert torch.equal(result, exact), "computed in float32 from the start to the end"
    result[0, 0].backward()
    assert logits.grad is not None
    assert logits.grad.dtype == LOW[dtype]


def test_denying_a_part_denies_the_whole() -> None:
    x, w = mat(), mat()
    assert Policy(deny="linear").decide("lstm") is Rule.FP32
    layer = nn.LSTM(4, 4)
    with unamp.autocast("cpu", deny="linear"):
        assert layer(x[None])[0].dtype == F32
        assert F.linear(x, w).dtype == F32
        assert (x @ w).dtype == BF16


NEAR = torch.linspace(1.0, 1.01, 24)  # bfloat16 has few different numbers in this range
NEARER = NEAR + 1e-3


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.isclose(NEAR, NEARER),  # computes where there is a tolerance
        lambda: torch.allclose(NEAR, NEARER, atol=2e-3),
        lambda: torch.isin(NEAR[::2], NEAR[1::2].repeat(30)),  # sorts where there are many numbers
        # counts in a tensor are an index
        lambda: torch.repeat_interleave(NEAR, torch.ones(24, dtype=torch.long)),
        lambda: NEAR.reshape(4, 6).to_sparse().values(),
        lambda: NEAR.reshape(4, 6).to_sparse_csr().values(),
        lambda: NEAR.reshape(4, 6).to_sparse_bsc((2, 3)).values(),
    ],
    ids=["isclose", "allclose", "isin", "repeat_interleave", "coo", "csr", "bsc"],
)
def test_what_keeps_its_meaning_does_whatever_its_arguments_have_it_compute_with(
    level: str, call: Any
) -> None:
    expected = call()
    with policy_region(Policy(level, "bfloat16")):
        found = call()
    assert (
        found == expected
        if isinstance(expected, bool)
        else found.dtype is expected.dtype and torch.equal(found, expected)
    )


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "policy",
    [Policy("O2", "bfloat16"), Policy("O1", "bfloat16", deny="kl_div", allow="div")],
    ids=str,
)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "batchmean"])
def test_kl_div_is_float32_however_it_is_reduced(
    reduction: str, policy: Policy, compiled: bool
) -> None:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.kl_div(x, y, reduction=reduction)

    x, y = torch.randn(8, 4).log_softmax(-1).requires_grad_(), torch.rand(8, 4)
    with policy_region(policy):
        found = (torch.compile(loss, backend="eager", fullgraph=True) if compiled else loss)(x, y)
    expected = loss(x, y)
    assert found.dtype == F32
    assert torch.equal(found, expected)
    assert torch.equal(*(torch.autograd.grad(each.sum(), x)[0] for each in (found, expected)))


def spread(*shape: int) -> Tensor:
    """Make a matrix whose singular values are far apart."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * 2.0 ** torch.arange(
        shape[-1]
    )


def largest(matrix: Tensor) -> Tensor:
    """Return the largest eigenvalues of a matrix times its transpose."""
    begin = torch.randn(len(matrix), 2, generator=torch.Generator().manual_seed(0))
    product = (matrix.double() @ matrix.double().mT).float()
    return torch.lobpcg(product, X=begin, niter=60)[0]


DECOMPOSITIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "lobpcg": largest,
    "pca_lowrank": lambda x: torch.pca_lowrank(x, q=4)[1],
    "svd_lowrank": lambda x: torch.svd_lowrank(x, q=4)[1],
}


def decomposed(decompose: Callable[[Tensor], Tensor], matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return what a matrix is decomposed to, and its gradient."""
    torch.manual_seed(0)
    matrix = matrix.detach().requires_grad_()
    values = decompose(matrix)
    values.float().sum().backward()
    assert matrix.grad is not None
    return values.detach(), matrix.grad


@each_dtype
@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("name", DECOMPOSITIONS)
def test_a_matrix_is_decomposed_by_products_in_float32(name: str, level: str, dtype: str) -> None:
    decompose, matrix = DECOMPOSITIONS[name], spread(24, 8)
    low = matrix.to(LOW[dtype])
    exact, rounded = decomposed(decompose, matrix), decomposed(decompose, low.float())
    with policy_region(Policy(level, dtype)):
        found, of_low = decomposed(decompose, matrix), decomposed(decompose, low)
    assert found[0].dtype is of_low[0].dtype is F32
    assert torch.equal(found[0], exact[0])
    assert torch.equal(found[1], exact[1])
    if (name, level) != ("pca_lowrank", "O1"):  # there it subtracts its mean as any program would
        assert torch.equal(of_low[0], rounded[0])
    after = decomposed(decompose, matrix)
    assert torch.equal(after[0], exact[0])


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_matrix_is_decomposed_in_float32_in_a_graph(level: str) -> None:
    def decompose() -> Tensor:
        return torch.svd_lowrank(torch.pca_lowrank(spread(24, 8), q=6)[2], q=4)[1]

    torch.manual_seed(0)
    exact = decompose()
    torch.manual_seed(0)
    with policy_region(Policy(level, "bfloat16")):
        found = torch.compile(decompose, backend="aot_eager")()
    assert found.dtype is F32
    assert torch.allclose(found, exact, rtol=1e-5)


@pytest.mark.parametrize("name", ["pca_lowrank", "svd_lowrank"])
def test_under_pytorchs_own_lists_a_matrix_is_decomposed_as_in_autocast(name: str) -> None:
    decompose, matrix = DECOMPOSITIONS[name], spread(24, 8)
    with torch.autocast("cpu", torch.bfloat16):
        expected = decomposed(decompose, matrix)
    with policy_region(Policy("O1", "bfloat16", preset="torch-cpu")):
        found = decomposed(decompose, matrix)
    assert torch.equal(found[0], expected[0])
    assert not torch.equal(found[0], decomposed(decompose, matrix)[0])
