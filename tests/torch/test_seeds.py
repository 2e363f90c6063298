"""The examples in the documentation of torch's own AMP run through unamp (seeds 003 and 004)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from unamp_conformance.check.cases import cases

import unamp
from unamp import Policy, Rule, custom_bwd, custom_fwd, policy_region
from unamp.adapter import major_minor
from unamp.adapter.registry import adapter_for

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16

each_low = pytest.mark.parametrize("low", [F16, BF16], ids=str)


def four() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return torch.rand(8, 8), torch.rand(8, 8), torch.rand(8, 8), torch.rand(8, 8)


# --- seed 003: torch.cuda.amp.autocast ------------------------------------------------------------


@each_low
def test_no_manual_casts_inside_and_explicit_ones_after(low: torch.dtype) -> None:
    a, b, c, d = four()
    with unamp.autocast(dtype=low):
        e = torch.mm(a, b)
        f = torch.mm(d, e)  # mixed input types
    g = torch.mm(d, f.float())
    assert (e.dtype, f.dtype, g.dtype) == (low, low, F32)
    assert torch.equal(e, a.to(low) @ b.to(low))
    assert torch.equal(f, d.to(low) @ e)
    with pytest.raises(RuntimeError, match="dtype"):
        torch.mm(d, e)  # outside the region nothing is cast
    assert c.dtype == F32


@each_low
def test_disabled_subregion_then_re_entry(low: torch.dtype) -> None:
    a, b, c, d = four()
    with unamp.autocast(dtype=low):
        e = torch.mm(a, b)
        with unamp.autocast(dtype=low, enabled=False):
            f = torch.mm(c, e.float())
            assert f.dtype == F32
            assert torch.equal(f, c @ e.float())
            with pytest.raises(RuntimeError, match="dtype"):
                torch.mm(c, e)
            with unamp.autocast(dtype=low):
                assert torch.mm(c, e).dtype == low
            assert torch.mm(c, c).dtype == F32
        g = torch.mm(d, f)
        assert g.dtype == low


@each_low
def test_mixed_input_types_of_every_kind(low: torch.dtype) -> None:
    a, b, c, _ = four()
    other = F16 if low is BF16 else BF16
    with unamp.autocast(dtype=low):
        for x, y, z in (
            (a.to(low), b, c),
            (a.to(other), b.to(low), c),
            (a.to(other), b.to(other), c.to(low)),
        ):
            assert torch.addmm(x, y, z).dtype == low
        assert (a.to(low) + b).dtype == F32
        assert torch.cat([a.to(low), b]).dtype == F32
        assert torch.stack([a.to(low), b.to(low)]).dtype == low


@each_low
def test_decorator_on_forward(low: torch.dtype) -> None:
    class Autocast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        @unamp.autocast(dtype=low)
        def forward(self, x: Tensor) -> Tensor:
            assert unamp.is_autocast_enabled()
            return self.inner(x)

    model, x = Autocast(), torch.rand(4, 8)
    out = model(x)
    assert out.dtype == low
    assert not unamp.is_autocast_enabled()
    assert torch.equal(
        out, nn.functional.linear(x.to(low), model.inner.weight.to(low), model.inner.bias.to(low))
    )


@each_low
def test_training_loop_with_backward_outside(low: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    x, target = torch.randn(32, 8), torch.randint(0, 3, (32,))
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        with unamp.autocast(dtype=low):
            output = model(x)
            loss = nn.functional.cross_entropy(output, target)
        assert (output.dtype, loss.dtype) == (low, F32)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] * 0.95
    assert (
        {p.grad.dtype for p in model.parameters()} == {p.dtype for p in model.parameters()} == {F32}
    )


@each_low
def test_backward_ops_run_in_the_dtype_of_their_forward(low: torch.dtype) -> None:
    a, b = torch.rand(8, 8, requires_grad=True), torch.rand(8, 8, requires_grad=True)
    with unamp.autocast(dtype=low):
        out = torch.mm(a, b)
    gradient = torch.rand(8, 8).to(low)
    out.backward(gradient)
    assert torch.equal(a.grad, (gradient @ b.detach().to(low).t()).float())
    assert torch.equal(b.grad, (a.detach().to(low).t() @ gradient).float())


class MatMul(torch.autograd.Function):
    """The documentation's example of a custom function whose operations need autocast."""

    seen: list[Any]

    @staticmethod
    @custom_fwd
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        MatMul.seen = [unamp.current_policy()]
        return a.mm(b)

    @staticmethod
    @custom_bwd
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        results = gradient.mm(b.t()), a.t().mm(gradient)
        MatMul.seen += [unamp.current_policy(), *(r.dtype for r in results)]
        return results


class InFloat32(torch.autograd.Function):
    """The documentation's example of a custom function that needs a particular dtype."""

    seen: list[Any]

    @staticmethod
    @custom_fwd(cast_inputs=torch.float32)
    def forward(ctx: Any, x: Tensor, whole: Tensor, double: Tensor) -> Tensor:
        InFloat32.seen = [
            x.dtype,
            whole.dtype,
            double.dtype,
            unamp.is_autocast_enabled(),
            x.mm(x).dtype,
        ]
        return x * 2

    @staticmethod
    @custom_bwd
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        InFloat32.seen += [unamp.is_autocast_enabled(), gradient.mm(gradient).dtype]
        return gradient * 2, None, None


@each_low
def test_custom_function_runs_backward_under_the_forwards_policy(low: torch.dtype) -> None:
    a, b = torch.rand(8, 8, requires_grad=True), torch.rand(8, 8, requires_grad=True)
    policy = Policy("O1", low, allow="relu")
    with policy_region(policy):
        out = MatMul.apply(a, b)
    assert out.dtype == low
    out.backward(torch.ones_like(out))
    assert MatMul.seen == [policy, policy, low, low]
    assert (a.grad.dtype, b.grad.dtype) == (F32, F32)
    assert torch.equal(a.grad, (torch.ones(8, 8, dtype=low) @ b.detach().t().to(low)).float())


@pytest.mark.parametrize("inside", ["region", "other region", "nothing"])
def test_custom_function_backward_state_does_not_depend_on_where_backward_runs(inside: str) -> None:
    a = torch.rand(8, 8, requires_grad=True)
    policy = Policy("O1", "bfloat16")
    around = {
        "region": policy,
        "other region": Policy("O1", "bfloat16", deny="mm"),
        "nothing": Policy(enabled=False),
    }[inside]
    with policy_region(policy):
        out = MatMul.apply(a, a)
    with policy_region(around):
        out.backward(torch.ones_like(out))
    assert MatMul.seen == [policy, policy, BF16, BF16]


def test_custom_function_used_outside_regions_computes_backward_outside_too() -> None:
    a = torch.rand(8, 8, requires_grad=True)
    out = MatMul.apply(a, a)
    with unamp.autocast("cpu"):
        out.backward(torch.ones_like(out))
    assert MatMul.seen[0] is None
    assert not MatMul.seen[1].active
    assert MatMul.seen[2:] == [F32, F32]


@each_low
def test_custom_function_with_cast_inputs_casts_and_switches_off(low: torch.dtype) -> None:
    x = torch.rand(8, 8, dtype=low, requires_grad=True)
    with unamp.autocast(dtype=low):
        out = InFloat32.apply(x, torch.arange(3), torch.rand(2, dtype=torch.float64))
        assert unamp.is_autocast_enabled()
    assert out.dtype == F32
    out.backward(torch.ones_like(out))
    assert InFloat32.seen == [F32, torch.int64, torch.float64, False, F32, False, F32]
    assert x.grad.dtype == low


@each_low
def test_custom_function_with_cast_inputs_is_a_no_op_outside_regions(low: torch.dtype) -> None:
    x = torch.rand(8, 8, dtype=low)
    out = InFloat32.apply(x, torch.arange(3), torch.rand(2, dtype=torch.float64))
    assert out.dtype == low
    assert InFloat32.seen[:5] == [low, torch.int64, torch.float64, False, low]


class Pair(NamedTuple):
    left: Any
    right: Any


def test_cast_inputs_reaches_into_nested_containers() -> None:
    seen: list[Any] = []

    class Nested(torch.autograd.Function):
        @staticmethod
        @custom_fwd(cast_inputs=torch.float16)
        def forward(
            ctx: Any, x: Tensor, nested: Mapping[str, Any], pair: Pair, text: str
        ) -> Tensor:
            seen.extend([x, nested, pair, text])
            return x.clone()

        @staticmethod
        @custom_bwd
        def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
            return gradient, None, None, None

    x = torch.rand(4)
    with unamp.autocast("cpu"):
        out = Nested.apply(
            x, {"list": [x, (x, 3)], "double": x.double()}, Pair(x, {"deep": x.bfloat16()}), "text"
        )
    assert out.dtype == F16
    got, nested, pair, text = seen
    assert (
        got.dtype,
        nested["list"][0].dtype,
        nested["list"][1][0].dtype,
        nested["list"][1][1],
    ) == (F16, F16, F16, 3)
    assert nested["double"].dtype == torch.float64
    assert isinstance(pair, Pair)
    assert (pair.left.dtype, pair.right["deep"].dtype, text) == (F16, F16, "text")
    assert isinstance(nested["list"], list)
    assert isinstance(nested["list"][1], tuple)


# --- seed 004: torch.cpu.amp ----------------------------------------------------------------------


class SimpleNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(64, 128, (3, 3), stride=(2, 2), padding=(1, 1), bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def test_inference_with_the_imperative_path() -> None:
    model, x = SimpleNet().eval(), torch.rand(2, 64, 14, 14)
    assert model(x).dtype == F32
    with unamp.autocast("cpu"):
        y = model(x)
    assert y.dtype == BF16
    assert torch.equal(
        y, nn.functional.conv2d(x.bfloat16(), model.conv.weight.bfloat16(), None, 2, 1)
    )


@pytest.mark.parametrize("preset", ["unamp", "torch-cpu", "native"])
def test_inference_with_the_torchscript_path(preset: str) -> None:
    model, x = SimpleNet().eval(), torch.rand(2, 64, 14, 14)
    with unamp.autocast("cpu", preset=preset):
        eager = model(x)
        traced = torch.jit.freeze(torch.jit.trace(model, x))
        inside = traced(x)
    outside = traced(x)
    assert (inside.dtype, outside.dtype) == (BF16, BF16)
    assert torch.equal(inside, eager)
    assert torch.equal(outside, eager)


@pytest.mark.parametrize("preset", ["unamp", "torch-cpu", "native"])
def test_training_support(preset: str) -> None:
    model = nn.Sequential(SimpleNet(), nn.Flatten(), nn.Linear(128 * 49, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, target = torch.rand(4, 64, 14, 14), torch.randint(0, 5, (4,))
    before = [p.detach().clone() for p in model.parameters()]
    losses = []
    for _ in range(3):
        with unamp.autocast("cpu", preset=preset):
            loss = nn.functional.cross_entropy(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(p.grad.dtype == F32 for p in model.parameters())
    assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_in_place_variants_and_explicit_outputs_are_exempt() -> None:
    a, b, c, d = four()
    with unamp.autocast("cpu"):
        assert a.addmm(b, c).dtype == BF16
        expected = b @ c
        assert expected.dtype == BF16
        kept = a.clone()
        assert a.addmm_(b, c) is a
        torch.addmm(kept, b, c, out=d)
    exact = torch.addmm(kept, b, c)
    assert a.dtype == d.dtype == F32
    assert torch.equal(a, exact)
    assert torch.equal(d, exact)


@pytest.mark.parametrize(
    "policy", [Policy("O1", "bfloat16", allow=("add", "exp")), Policy("O3", "bfloat16")], ids=repr
)
def test_in_place_variants_and_explicit_outputs_are_exempt_from_custom_lists_too(
    policy: Policy,
) -> None:
    a, b, out = torch.rand(8), torch.rand(8), torch.empty(8)
    x = a.clone()
    with policy_region(policy):
        assert (a + b).dtype == BF16
        assert a.exp().dtype == BF16
        torch.add(a, b, out=out)
        assert torch.equal(
            out, torch.tensor([p + q for p, q in zip(a.tolist(), b.tolist(), strict=True)])
        )
        x += b
        assert torch.equal(x, out)
        torch.exp(a, out=out)
        assert x.exp_().dtype == F32
    assert torch.equal(out, a.exp())


@pytest.mark.parametrize("level", ["OD", "O1", "O2", "O3"])
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.int64, torch.int32, torch.complex64], ids=str
)
def test_other_dtypes_are_not_eligible(level: str, dtype: torch.dtype) -> None:
    x = torch.arange(1, 17).reshape(4, 4).to(dtype)
    expected = x @ x, x + x, x.pow(2), torch.cat([x, x]), x.sum()
    with unamp.autocast("cpu", level=level):
        found = x @ x, x + x, x.pow(2), torch.cat([x, x]), x.sum()
    for got, want in zip(found, expected, strict=True):
        assert got.dtype == want.dtype
        assert torch.equal(got, want)


# The three lists as the seed prints them.
SEED_LOW = """
conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d bmm mm baddbmm addmm addbmm
linear matmul conv_tbc group_norm _native_multi_head_attention
""".split()
SEED_FLOAT32 = """
avg_pool3d binary_cross_entropy grid_sampler polar prod quantile nanquantile stft cdist trace
view_as_complex cholesky cholesky_inverse cholesky_solve inverse lu_solve matrix_rank orgqr ormqr
pinverse max_unpool2d max_unpool3d adaptive_avg_pool3d reflection_pad1d reflection_pad2d
replication_pad1d replication_pad2d replication_pad3d mse_loss cosine_embedding_loss nll_loss
nll_loss2d hinge_embedding_loss poisson_nll_loss smooth_l1_loss cross_entropy_loss l1_loss
huber_loss margin_ranking_loss soft_margin_loss triplet_margin_loss multi_margin_loss ctc_loss
kl_div multilabel_margin_loss binary_cross_entropy_with_logits fft_fft fft_ifft fft_fft2 fft_ifft2
fft_fftn fft_ifftn fft_rfft fft_irfft fft_rfft2 fft_irfft2 fft_rfftn fft_irfftn fft_hfft fft_ihfft
linalg_cond linalg_matrix_rank linalg_solve linalg_cholesky linalg_svdvals linalg_eigvals
linalg_eigvalsh linalg_inv linalg_householder_product linalg_tensorinv linalg_tensorsolve
fake_quantize_per_tensor_affine eig geqrf lstsq _lu_with_info qr svd symeig triangular_solve
fractional_max_pool2d fractional_max_pool3d adaptive_max_pool3d multilabel_margin_loss_forward
linalg_qr linalg_cholesky_ex linalg_svd linalg_eig linalg_eigh linalg_lstsq linalg_inv_ex
""".split()
SEED_WIDEST = ["cat", "stack", "index_copy"]

#: Changes in torch since the seeds were written.
GONE = {"eig", "lstsq", "matrix_rank", "symeig"}  # removed from torch
# by the version that removes them; `torch.linalg` keeps them
GONE_SINCE = {(2, 15): {"cholesky", "qr"}}
# by the version that computes the position of a quantile in float64
FLOAT64_SINCE = {"quantile": (2, 15)}
MOVED = {"group_norm": Rule.WIDEST}  # off torch's list: it follows its input

#: Functions whose older names alone are on torch's list.
OLDER = {"_lu_with_info", "lu_solve", "triangular_solve"}


def seed_lists() -> dict[str, Rule]:
    lists = ((SEED_LOW, Rule.LOW), (SEED_FLOAT32, Rule.FP32), (SEED_WIDEST, Rule.WIDEST))
    return {
        name: MOVED.get(name, rule) for names, rule in lists for name in names if name not in GONE
    }


def test_what_the_seed_lists_and_torch_no_longer_has() -> None:
    since = (
        names for version, names in GONE_SINCE.items() if major_minor(torch.__version__) >= version
    )
    listed = SEED_LOW + SEED_FLOAT32 + SEED_WIDEST
    assert {name for name in listed if not hasattr(torch.ops.aten, name)} == GONE.union(*since)


@pytest.mark.parametrize(("name", "rule"), seed_lists().items())
def test_the_three_lists_as_they_are_today(name: str, rule: Rule) -> None:
    policy = Policy("O1", "bfloat16", preset="torch-cpu")
    assert policy.decide(f"torch.{name}") == rule
    operations, case = (
        adapter_for("torch").operations(),
        cases()[unamp.vocabulary().resolve(f"torch.{name}")],
    )
    arrays = case.inputs(0)
    eligible = case.eligible(arrays)
    given = F32 if rule is Rule.LOW else BF16
    tensors = [operations.tensor(array) for array in arrays]
    tensors = [t.to(given) if n in eligible else t for n, t in enumerate(tensors)]
    if rule is Rule.WIDEST and name != "group_norm":
        tensors[eligible[-1]] = tensors[eligible[-1]].float()
    if name in OLDER:
        for region in (torch.autocast("cpu"), policy_region(policy)):
            with region, pytest.raises(RuntimeError, match="BFloat16"):
                case.call(operations[case.op], tensors)
        tensors = [t.float() if t.is_floating_point() else t for t in tensors]
    with policy_region(policy), unamp.trace() as trace:
        result = case.call(operations[case.op], tensors)
    expected = {Rule.LOW: BF16, Rule.FP32: F32}.get(rule, BF16 if name == "group_norm" else F32)
    # The listed operator can be a part of the function that users call (F.pad,
    # F.multi_head_attention_forward).
    records = [r for r in trace.records if r.op == case.op] or trace.records
    in_float64 = name in FLOAT64_SINCE and major_minor(torch.__version__) >= FLOAT64_SINCE[name]
    assert {r.compute for r in records} == {
        "float64" if in_float64 else str(expected).removeprefix("torch.")
    }
    results = [
        t for t in (result if isinstance(result, tuple) else [result]) if t.is_floating_point()
    ]
    assert {t.dtype for t in results} <= {expected}
