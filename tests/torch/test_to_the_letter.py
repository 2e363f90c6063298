"""Under PyTorch's own lists for a device, a region is torch's own autocast, to the bit.

The user adds no lists.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import unamp
from unamp import Policy, policy_region

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
LOW = {"float16": F16, "bfloat16": BF16}

each_dtype = pytest.mark.parametrize("dtype", LOW)

#: Operations that PyTorch does not list, but computes with listed ones.
COMPOSITES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "einsum": lambda x, y: torch.einsum("ij,jk->ik", x, y),
    "einsum without a product of matrices": lambda x, y: torch.einsum("ij,ij->ij", x, y),
    "inner": torch.inner,
    "inner of a scalar": lambda x, y: torch.inner(x[0, 0], y),
    "matrix_power": lambda x, y: torch.matrix_power(x, 3),
    "matrix_power of 1": lambda x, y: torch.matrix_power(x, 1),
    "tensordot": lambda x, y: torch.tensordot(x, y, 1),
    "bilinear": lambda x, y: F.bilinear(x, y, torch.stack([x, y])),
    "cov": lambda x, y: torch.cov(x),
    "corrcoef": lambda x, y: torch.corrcoef(x),
    "masked_fill": lambda x, y: (x @ y).masked_fill(x > 0, y.sum()),
    "index_fill": lambda x, y: (x @ y).index_fill(0, torch.tensor([1]), y.sum()),
    "multi_dot": lambda x, y: torch.linalg.multi_dot([x, y, x]),
    "normalize": lambda x, y: F.normalize(x @ y),
}


def results(
    context: AbstractContextManager[Any], f: Callable[..., Any], *given: Tensor
) -> list[Tensor]:
    """Return the result, and the gradients of the arguments."""
    leaves = [t.detach().clone().requires_grad_() for t in given]
    with context:
        out = f(*leaves)
    return [
        out.detach(),
        *(
            g
            for g in torch.autograd.grad(out.float().square().sum(), leaves, allow_unused=True)
            if g is not None
        ),
    ]


def equal(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    same = (a.dtype is b.dtype and torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    return all(same)


def letter(dtype: str) -> AbstractContextManager[Any]:
    return unamp.autocast("cpu", dtype, preset="torch-cpu")


@each_dtype
@pytest.mark.parametrize("op", COMPOSITES)
def test_what_pytorch_computes_with_other_operations_is_torchs_own(op: str, dtype: str) -> None:
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    theirs = results(torch.autocast("cpu", LOW[dtype]), COMPOSITES[op], x, y)
    assert equal(results(letter(dtype), COMPOSITES[op], x, y), theirs)


def test_what_torchs_own_refuses_is_refused_likewise() -> None:
    x = torch.randn(4, 3, requires_grad=True)
    for region in (torch.autocast("cpu", BF16), letter("bfloat16")):
        with region:
            result = torch.linalg.pinv(x)
        with pytest.raises(RuntimeError, match="same dtype"):
            result.sum().backward()
    with unamp.autocast("cpu", "bfloat16"):
        result = torch.linalg.pinv(x)
    result.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype is F32


RECURRENT: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "GRU": (lambda: nn.GRU(4, 4, bidirectional=True), (5, 2, 4)),
    "RNN": (lambda: nn.RNN(4, 4, num_layers=2), (5, 2, 4)),
    "GRUCell": (lambda: nn.GRUCell(4, 4), (2, 4)),
    "LSTMCell": (lambda: nn.LSTMCell(4, 4), (2, 4)),
    "RNNCell": (lambda: nn.RNNCell(4, 4), (2, 4)),
}


def first(result: Any) -> Tensor:
    return result if isinstance(result, Tensor) else first(result[0])


@each_dtype
@pytest.mark.parametrize("layer", RECURRENT)
def test_recurrent_layers_are_torchs_own(layer: str, dtype: str) -> None:
    make, shape = RECURRENT[layer]
    module, x = make(), torch.randn(shape)
    twin = copy.deepcopy(module)
    theirs = results(torch.autocast("cpu", LOW[dtype]), lambda t: first(twin(t)), x)
    assert equal(results(letter(dtype), lambda t: first(module(t)), x), theirs)


@each_dtype
def test_a_packed_lstm_is_torchs_own(dtype: str) -> None:
    lstm, x = nn.LSTM(4, 4), torch.randn(5, 2, 4)

    def run(t: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(t, torch.tensor([5, 3]))
        return nn.utils.rnn.pad_packed_sequence(lstm(packed)[0])[0]

    assert equal(results(letter(dtype), run, x), results(torch.autocast("cpu", LOW[dtype]), run, x))


@pytest.mark.parametrize(
    "lists", [{"allow": "relu"}, {"deny": "softmax"}, {"level": "O2"}], ids=str
)
def test_elsewhere_an_operation_is_one_whole(lists: dict[str, str]) -> None:
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    with unamp.autocast("cpu", preset="torch-cpu", **lists):
        assert torch.einsum("ij,ij->ij", x, y).dtype is BF16
        assert torch.inner(x[0, 0], y).dtype is BF16
    with letter("bfloat16"):
        assert torch.einsum("ij,ij->ij", x, y).dtype is F32


def test_single_operators_that_pytorch_refuses_are_widened_all_the_same() -> None:
    x, y = torch.randn(4), torch.randn(4)
    with letter("bfloat16"):
        assert torch.equal(torch.dot(x.bfloat16(), y), torch.dot(x.bfloat16().float(), y))
        assert torch.equal(
            torch.special.bessel_j0(x.bfloat16()),
            torch.special.bessel_j0(x.bfloat16().float()).bfloat16(),
        )
    with torch.autocast("cpu", BF16), pytest.raises(RuntimeError, match="same dtype"):
        torch.dot(x.bfloat16(), y)


@pytest.mark.parametrize("pre_dispatch", [False, True])
@pytest.mark.parametrize("preset", ["torch-cpu", "native"])
def test_a_recorded_graph_has_what_runs_eagerly(preset: str, pre_dispatch: bool) -> None:
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    # cov and corrcoef read values, which a graph does not have yet. In bilinear, torch's own
    # autocast casts below the level at which graphs are recorded: that cast is lost without unamp,
    # too.
    ops = [f for name, f in COMPOSITES.items() if name not in ("corrcoef", "cov", "bilinear")]

    def all_of_them(x: Tensor, y: Tensor) -> list[Tensor]:
        return [f(x, y) for f in ops]

    with policy_region(Policy("O1", "bfloat16", preset=preset)):
        graph = make_fx(all_of_them, pre_dispatch=pre_dispatch)(x, y)
        eager = all_of_them(x, y)
    assert equal(graph(x, y), eager)


def test_under_vmap_too_an_operation_does_what_its_parts_do() -> None:
    x, y = torch.randn(3, 4, 4), torch.randn(3, 4, 4)
    with letter("bfloat16"):
        one_by_one = torch.stack(
            [torch.einsum("ij,jk->ik", a, b) for a, b in zip(x, y, strict=True)]
        )
        together = torch.vmap(lambda a, b: torch.einsum("ij,jk->ik", a, b))(x, y)
        filled = torch.vmap(lambda a, b: (a @ b).masked_fill(a > 0, b.sum()))(x, y)
    assert together.dtype is one_by_one.dtype is filled.dtype is BF16
    assert torch.allclose(together.float(), one_by_one.float(), rtol=2**-6, atol=2**-6)


def test_a_trace_says_that_pytorch_does_it_by_itself() -> None:
    adapter = unamp.adapter.registry.adapter_for("torch")
    for op in ("einsum", "gru", "cov", "lstm", "matmul"):
        assert (
            adapter.how(op, Policy("O1", "bfloat16", preset="torch-cpu"), "cpu")
            is unamp.adapter.How.NATIVE
        )
        assert (
            adapter.how("einsum", Policy("O1", "bfloat16"), "cpu") is unamp.adapter.How.INTERCEPTED
        )
    x = torch.randn(4, 4)
    with letter("bfloat16"), unamp.trace() as trace:
        result = torch.einsum("ij,jk->ik", x, x)
    assert result.dtype is BF16
    assert [(r.op, r.compute) for r in trace.records] == [("einsum", "bfloat16")]
