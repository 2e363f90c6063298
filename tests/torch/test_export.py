"""Exported and traced programs carry the policy under which they were made."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from elsewhere import forked
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import unamp
from unamp import Policy, policy_region

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16

POLICIES = [
    Policy("O1", "bfloat16"),
    Policy("O1", "bfloat16", allow=("add", "exp"), deny="linear"),
    Policy("O3", "float16"),
    Policy("O1", "bfloat16", preset="torch-cpu"),
    Policy("O1", "bfloat16", preset="native"),
    Policy("O3", "bfloat16", preset="native"),
]
each_policy = pytest.mark.parametrize("policy", POLICIES, ids=repr)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm, self.linear = nn.Conv2d(1, 2, 3), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        hidden = self.conv(x).flatten(1)[:, :8]
        out = self.linear(self.norm(hidden))
        return hidden, out, out + hidden[:, :3], out.exp(), torch.cat([out, hidden], 1)


class Inside(nn.Module):
    """A network that opens its region itself."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.network, self.policy = Network(), policy

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        with policy_region(self.policy):
            found = self.network(x)
        return (*found, x.exp())


x = torch.rand(2, 1, 6, 6)


def same(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(
        p.dtype == q.dtype and torch.equal(p, q) for p, q in zip(a, b, strict=True)
    )


@pytest.mark.parametrize("strict", [False, True])
@each_policy
def test_export_in_a_region(policy: Policy, strict: bool) -> None:
    model = Network().eval()
    with policy_region(policy), torch.no_grad():
        expected = model(x)
    with policy_region(policy):
        program = torch.export.export(model, (x,), strict=strict)
    found = program.module()(x)
    assert same(found, expected)
    with policy_region(Policy("O1", "float16", deny="add")):
        assert unamp.current_policy() is not None
    assert same(torch.export.export(model, (x,), strict=strict).module()(x), model(x)), (
        "an export outside is unaffected"
    )


@pytest.mark.parametrize("strict", [False, True])
def test_export_survives_decompositions_saving_and_loading(strict: bool) -> None:
    model, policy = Network().eval(), POLICIES[1]
    with policy_region(policy):
        expected = model(x)
        program = torch.export.export(model, (x,), strict=strict)
    decomposed = program.run_decompositions()
    assert [t.dtype for t in decomposed.module()(x)] == [t.dtype for t in expected]
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    assert same(torch.export.load(file).module()(x), expected)


def test_export_with_dynamic_shapes() -> None:
    model, policy = Network().eval(), POLICIES[1]
    with policy_region(policy):
        program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
        expected = model(torch.cat([x, x, x]))
    assert same(program.module()(torch.cat([x, x, x])), expected)


def test_an_exported_program_is_not_changed_by_the_region_it_runs_in() -> None:
    model, policy = Network().eval(), Policy("O1", "bfloat16", allow=("add", "exp"))
    with policy_region(policy):
        program = torch.export.export(model, (x,))
        expected = model(x)
    run = program.module()
    with policy_region(policy):
        assert same(run(x), expected)


class WithoutKernels(nn.Module):
    """Operators without low kernels; one of them is made of operators that have low kernels."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        rows = x.flatten(1)
        weight, start = rows[:1, :3].expand(12, 3), rows[None, :, :3]
        output, *_ = torch.lstm(
            start, (start, start), [weight, weight], False, 1, 0.0, False, False, True
        )
        return torch.cdist(rows, rows), output


@pytest.mark.parametrize("strict", [False, True])
def test_what_computes_in_float32_for_want_of_a_low_kernel_is_rounded_in_the_program_too(
    strict: bool,
) -> None:
    model = WithoutKernels()
    with policy_region(Policy("OD", "float16", allow="cdist")):
        expected = model(x)
        program = torch.export.export(model, (x,), strict=strict)
    assert [t.dtype for t in expected] == [F16, F16]
    assert same(program.module()(x), expected)


def test_a_program_is_taken_apart_in_a_region_as_outside() -> None:
    with policy_region(Policy("O3", "float16")):
        program = torch.export.export(WithoutKernels(), (x,))
        inside = program.run_decompositions()
    assert same(inside.module()(x), program.run_decompositions().module()(x))


def test_an_onnx_export_that_fails_leaves_nothing_behind(native_state: Callable[[], Any]) -> None:
    model, before = Network(), native_state()
    with policy_region(POLICIES[0]):
        with pytest.raises(TypeError, match="no_such_option"):
            torch.onnx.export(model, (x,), no_such_option=True)
        assert unamp.current_policy() == POLICIES[0]
        assert model(x)[1].dtype == BF16
    assert "forward" not in vars(model)
    assert native_state() == before


def test_an_exported_program_can_be_trained() -> None:
    model, policy = Network(), POLICIES[1]
    with policy_region(policy.replace(cache=False)):
        out = model(x)[1]
        program = torch.export.export(model, (x,))
    out.float().sum().backward()
    run = program.module()
    run(x)[1].float().sum().backward()
    for name, p in run.named_parameters():
        assert p.grad.dtype == F32
        assert torch.allclose(p.grad, model.get_parameter(name).grad, atol=1e-2)


def test_an_export_that_fails_leaves_nothing_behind(native_state: Callable[[], Any]) -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with unamp.autocast("cpu", allow="add"):
                return (x + x).view(7)

    before = native_state()
    for strict in (False, True):
        with pytest.raises(Exception, match="(?i)shape|view|size"):
            torch.export.export(Fails(), (x,), strict=strict)
        with policy_region(POLICIES[1]), pytest.raises(Exception, match="(?i)shape|view|size"):
            torch.export.export(Fails(), (x,), strict=strict)
        assert native_state() == before
        assert unamp.current_policy() is None
    assert (x + x).dtype == F32


# --- TorchScript, make_fx -------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("trainable", [False, True])
@each_policy
def test_jit_trace_then_freeze(policy: Policy, trainable: bool) -> None:
    model = Network().eval().requires_grad_(trainable)
    with policy_region(policy):
        expected = model(x)
        traced = torch.jit.trace(model, x)
        frozen = torch.jit.freeze(traced)
    # Freezing inside torch's own autocast has TorchScript add its own autocast, with other lists.
    for run in (traced,) if policy.preset == "native" else (traced, frozen):
        for _ in range(3):  # TorchScript optimises after the first runs
            assert same(run(x), expected)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_jit_trace_of_a_function_with_a_region_inside_survives_saving(tmp_path: Any) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        with unamp.autocast("cpu", allow="add", deny="mm"):
            return x + x, torch.mm(x.bfloat16(), x.bfloat16()), F.linear(x, x)

    square = torch.rand(4, 4)
    expected = function(square)
    assert [t.dtype for t in expected] == [BF16, F32, BF16]
    torch.jit.save(torch.jit.trace(function, square), str(tmp_path / "traced.pt"))
    assert same(torch.jit.load(str(tmp_path / "traced.pt"))(square), expected)


def test_the_first_region_of_a_process_is_inside_a_trace() -> None:
    code = """if True:
        import torch, unamp
        def function(x):
            with unamp.autocast("cpu", "bfloat16"):
                return x @ x
        print(torch.jit.trace(function, torch.ones(2, 2))(torch.ones(2, 2)).dtype)
    """
    assert forked("torch", code) == "torch.bfloat16\n"


@pytest.mark.parametrize("pre_dispatch", [False, True])
@each_policy
def test_make_fx(policy: Policy, pre_dispatch: bool) -> None:
    model = Network().eval().requires_grad_(False)
    with policy_region(policy):
        expected = model(x)
        graph = make_fx(model, pre_dispatch=pre_dispatch)(x)
    assert same(graph(x), expected)
    inside = Inside(policy).eval().requires_grad_(False)
    assert same(make_fx(inside, pre_dispatch=pre_dispatch)(x)(x), inside(x))
    assert same(make_fx(model, pre_dispatch=pre_dispatch)(x)(x), model(x)), (
        "a program made outside is unaffected"
    )


def test_a_make_fx_that_fails_leaves_nothing_behind(native_state: Callable[[], Any]) -> None:
    def fails(x: Tensor) -> Tensor:
        with unamp.autocast("cpu", allow="add"):
            return (x + x).view(7)

    before, handlers = native_state(), type(torch.ops.aten.add.Tensor._dispatch_cache)
    with pytest.raises(RuntimeError, match="shape"):
        make_fx(fails, pre_dispatch=True)(x)
    with policy_region(POLICIES[1]), pytest.raises(RuntimeError, match="shape"):
        make_fx(fails, pre_dispatch=True)(x)
    assert native_state() == before
    assert type(torch.ops.aten.add.Tensor._dispatch_cache) is handlers


def test_a_region_that_cannot_be_opened_where_operators_are_recorded_leaves_nothing_behind(
    native_state: Callable[[], Any], attributes: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = native_state(), attributes()
    monkeypatch.delattr(torch.ops.aten.mm.default, "_dispatch_cache")
    with pytest.raises(Exception, match="_dispatch_cache"):
        make_fx(Inside(POLICIES[0]), pre_dispatch=True)(x)
    assert (unamp.current_policy(), (x + x).dtype) == (None, F32)
    assert (native_state(), attributes()) == before
