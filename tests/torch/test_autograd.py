"""Gradients have the dtypes of their forward pass, wherever backward runs.

Checkpointing and torch.func are tested, too.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from elsewhere import forked
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import unamp
from unamp import Policy, policy_region

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16

#: A policy that native autocast carries out alone as far as it can, and policies for which unamp
#: takes over common operations.
POLICIES = [
    Policy("O1", "bfloat16"),
    Policy("O1", "bfloat16", preset="torch-cpu"),
    Policy("O1", "bfloat16", preset="native"),
    Policy("O1", "bfloat16", allow=("add", "mul", "sum"), deny="mm"),
    Policy("O2", "bfloat16"),
    Policy("O3", "float16"),
]
each_policy = pytest.mark.parametrize("policy", POLICIES, ids=repr)
ADD = Policy("O1", "bfloat16", allow=("add", "mul", "sum"), deny="exp")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)
    )


def gradients(module: nn.Module) -> list[Tensor]:
    found = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    return found


def all_equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(p.dtype == q.dtype and torch.equal(p, q) for p, q in zip(a, b, strict=True))


# --- dtypes ---------------------------------------------------------------------------------------


@each_policy
def test_gradients_of_low_leaves_keep_their_dtype(policy: Policy) -> None:
    for dtype in (F16, BF16, torch.float64):
        x = torch.randn(4, 6).to(dtype).requires_grad_()
        with policy_region(policy):
            out = (
                x.tanh().sum()
                if dtype is torch.float64
                else F.linear(x.tanh(), torch.randn(3, 6)).sum()
            )
        out.backward()
        assert x.grad.dtype == dtype


@pytest.mark.parametrize("inside", [True, False])
def test_gradient_accumulation_stays_in_float32_while_add_is_allowed(inside: bool) -> None:
    w = torch.ones(1, requires_grad=True)
    with policy_region(ADD):
        losses = [(w * 1.0).float(), (w * 2**-9).float()]
    with policy_region(ADD) if inside else nullcontext():
        for loss in losses:
            loss.backward()
    assert w.grad.dtype == F32
    assert w.grad.item() == 1.0 + 2**-9  # bfloat16 has no such number
    x = torch.ones(4, requires_grad=True)
    with policy_region(ADD):
        fan_out = (torch.tanh(x), torch.tanh(x), torch.tanh(x))
    with policy_region(ADD) if inside else nullcontext():
        torch.autograd.backward(fan_out, [torch.full((4,), 2.0**-k) for k in (0, 9, 18)])
    reference = torch.ones(4, requires_grad=True)
    torch.autograd.backward(
        [reference.tanh() for _ in range(3)], [torch.full((4,), 2.0**-k) for k in (0, 9, 18)]
    )
    assert torch.equal(x.grad, reference.grad)


@each_policy
def test_backward_inside_a_region_is_backward_outside_bit_for_bit(policy: Policy) -> None:
    model, x = network(), torch.randn(4, 6)
    with policy_region(policy):
        loss = model(x).float().square().mean()
    loss.backward()
    outside = gradients(model)
    # With `native`, torch's own AMP stays on and casts in backward, too.
    for around in [*(p for p in POLICIES if p.preset != "native"), Policy(enabled=False)]:
        with policy_region(policy):
            loss = model(x).float().square().mean()
        with policy_region(around):
            loss.backward()
            assert unamp.current_policy() == around
        assert all_equal(gradients(model), outside), around
    with policy_region(policy):
        loss = model(x).float().square().mean()
        found = torch.autograd.grad(loss, list(model.parameters()))
    assert all_equal(list(found), outside)


@each_policy
def test_double_backward(policy: Policy) -> None:
    model, x = network(), torch.randn(4, 6, requires_grad=True)

    def penalty(around: Any) -> list[Tensor]:
        with policy_region(policy):
            out = model(x).float().sum()
            with around:
                (gradient,) = torch.autograd.grad(out, x, create_graph=True)
            total = gradient.float().square().sum()
        assert gradient.dtype == F32
        total.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    inside = penalty(nullcontext())
    model.zero_grad(set_to_none=True)
    outside = penalty(policy_region(Policy(enabled=False)))
    assert {g.dtype for g in inside} == {F32}
    assert len(inside) == 7  # the last bias is missing: the gradient does not depend on it
    assert all_equal(inside, outside)


def test_hooks_see_the_forwards_dtypes_and_run_outside_the_policy() -> None:
    model, x, seen = network(), torch.randn(4, 6), []
    model[3].register_full_backward_hook(lambda m, gi, go: seen.append((gi[0].dtype, go[0].dtype)))
    model[0].weight.register_hook(lambda g: seen.append(g.dtype))
    model[0].weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.dtype))
    with unamp.autocast("cpu"):
        out = model(x)
        out.register_hook(lambda g: seen.append((g @ g.t().float().to(g.dtype)).dtype))
        out.float().sum().backward()
    assert seen[0] == BF16
    assert seen[1][1] == BF16
    assert seen[2:] == [F32, F32]


def test_custom_function_without_decorators() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.mm(x)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            gradient = gradient.to(x.dtype)
            return gradient.mm(x.t()) + x.t().mm(gradient)

    x = torch.rand(4, 4, requires_grad=True)
    for around in (nullcontext(), unamp.autocast("cpu")):
        with unamp.autocast("cpu"):
            out = Square.apply(x)
        assert out.dtype == BF16
        with around:
            out.float().sum().backward()
        ones = torch.ones(4, 4)
        assert x.grad.dtype == F32
        assert torch.allclose(x.grad, ones @ x.detach().t() + x.detach().t() @ ones, atol=1e-5)
        x.grad = None


# --- checkpoint -----------------------------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_recomputes_under_the_forwards_policy(reentrant: bool) -> None:
    seen: list[Any] = []

    def block(x: Tensor) -> Tensor:
        seen.append((unamp.current_policy(), torch.mm(x.detach(), x.detach()).dtype))
        return x.mm(x)

    x = torch.rand(4, 4, requires_grad=True)
    policy, other = Policy("O1", "bfloat16", allow="add"), Policy("O1", "float16", deny="mm")
    with policy_region(policy):
        out = checkpoint(block, x, use_reentrant=reentrant)
    with policy_region(other):
        out.float().sum().backward()
        assert unamp.current_policy() == other
    assert seen == [(policy, BF16)] * 2


MODULE_TO_BE_CHECKPOINTED = """
import contextlib, sys
import torch
import unamp

policy, inside = unamp.Policy("O1", "bfloat16", allow="tanh", deny="linear"), sys.argv[1] == "inside"
module, x = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)), torch.randn(4, 6)

def gradients():
    with unamp.policy_region(policy):
        loss = module(x).float().square().mean()
    loss.backward()
    found = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    return found

expected = gradients()
with unamp.policy_region(policy) if inside else contextlib.nullcontext():
    from torch.distributed._composable import checkpoint, checkpoint_activation
checkpoint(module)
for _ in range(2):
    assert all(map(torch.equal, gradients(), expected))
for name, value in vars(checkpoint_activation).items():
    if name.startswith("_checkpoint_without"):
        print(value is vars(torch.utils.checkpoint)[name])
"""  # noqa: E501


@pytest.mark.parametrize("imported", ["inside", "outside"])
def test_a_module_that_is_to_be_checkpointed_recomputes_under_the_forwards_policy(
    imported: str,
) -> None:
    assert forked("torch", MODULE_TO_BE_CHECKPOINTED, imported).split() == ["True"]


# --- inference_mode, torch.func -------------------------------------------------------------------


@each_policy
def test_inference_mode(policy: Policy) -> None:
    model, x = network().eval(), torch.randn(4, 6)
    with policy_region(policy):
        with torch.no_grad():
            expected = model(x)
        with torch.inference_mode():
            found = model(x)
    with torch.inference_mode(), policy_region(policy):
        outer = model(x)
    assert found.is_inference()
    assert torch.equal(expected, found)
    assert torch.equal(expected, outer)


def scalars(x: Tensor) -> Tensor:
    return ((x + 1.5) * 2 - 1).pow(2).mm(x / 3).exp().sum() * 0.5


FUNC_POLICIES = [
    Policy("O1", "bfloat16", allow=("add", "mul", "sub", "div")),
    Policy("O3", "bfloat16"),
    Policy("O1", "bfloat16"),
]


@pytest.mark.parametrize("policy", FUNC_POLICIES, ids=repr)
def test_torch_func_gives_what_autograd_gives(policy: Policy) -> None:
    x = torch.rand(3, 3) / 4
    leaf = x.clone().requires_grad_()
    with policy_region(policy.replace(cache=False)):  # tensors of torch.func have no cache of casts
        value = scalars(leaf)
        expected = torch.autograd.grad(value, leaf)[0]
        found = torch.func.grad(scalars)(x)
        both, same = torch.func.grad_and_value(scalars)(x)
        out, pullback = torch.func.vjp(scalars, x)
        (pulled,) = pullback(torch.ones_like(out))
        jacobian = torch.func.jacrev(scalars)(x)
    assert found.dtype == F32
    assert torch.equal(found, expected)
    assert torch.equal(both, expected)
    assert torch.equal(same, value)
    assert torch.equal(pulled, expected)
    assert torch.allclose(jacobian, expected)


@pytest.mark.parametrize("policy", FUNC_POLICIES, ids=repr)
def test_a_linearized_function_gives_what_jvp_gives(policy: Policy) -> None:
    layer, x = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3), nn.GroupNorm(3, 3)), torch.rand(5, 4)
    tangent = torch.rand(5, 4)
    with policy_region(policy):
        value, pushed = torch.func.jvp(layer, (x,), (tangent,))
        same, push = torch.func.linearize(layer, x)
        assert torch.equal(same, value)
        inside = push(tangent)
    assert torch.equal(inside, push(tangent))
    assert torch.allclose(inside.float(), pushed.float(), rtol=0.05, atol=0.05)
    assert inside.dtype == pushed.dtype


@pytest.mark.parametrize("policy", FUNC_POLICIES, ids=repr)
def test_forward_mode_gives_what_jvp_gives(policy: Policy) -> None:
    layer, x = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3), nn.GroupNorm(3, 3)), torch.rand(5, 4)
    tangent = torch.rand(5, 4)

    def pushed() -> forward_ad.UnpackedDualTensor:
        return forward_ad.unpack_dual(layer(forward_ad.make_dual(x, tangent)))

    with policy_region(policy):
        value, expected = torch.func.jvp(layer, (x,), (tangent,))
        with forward_ad.dual_level():
            inside = pushed()
        plain = layer(x)
    with forward_ad.dual_level(), policy_region(policy):
        around = pushed()
    for found in (inside, around):
        assert found.primal.dtype == value.dtype
        assert torch.equal(found.primal, plain)
        assert found.tangent.dtype == expected.dtype
        assert torch.allclose(found.tangent.float(), expected.float(), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("op", ["layer_norm", "mse_loss"])
def test_tangents_of_what_stays_float32_are_float32_to_the_bit(op: str) -> None:
    call = {"layer_norm": lambda x: F.layer_norm(x, (4,)), "mse_loss": lambda x: F.mse_loss(x, y)}
    x, y, tangent = torch.rand(3, 5, 4).unbind()

    def pushed() -> Tensor:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(call[op](forward_ad.make_dual(x, tangent))).tangent

    exact = pushed()
    with policy_region(Policy("O2", "bfloat16")):
        assert torch.equal(pushed(), exact)


@pytest.mark.parametrize("policy", FUNC_POLICIES, ids=repr)
def test_torch_func_transforms_and_their_compositions(policy: Policy) -> None:
    batch = torch.rand(5, 3, 3) / 4
    x, tangent = batch[0], torch.rand(3, 3)
    with policy_region(policy):
        each = torch.stack([scalars(b) for b in batch])
        mapped = torch.func.vmap(scalars)(batch)
        per_sample = torch.func.vmap(torch.func.grad(scalars))(batch)
        one_by_one = torch.stack([torch.func.grad(scalars)(b) for b in batch])
        value, pushed = torch.func.jvp(scalars, (x,), (tangent,))
        forward = torch.func.jacfwd(scalars)(x)
        hessian = torch.func.hessian(scalars)(x)
    assert mapped.dtype == each.dtype
    assert torch.allclose(mapped.float(), each.float(), rtol=0.03)
    assert torch.allclose(per_sample.float(), one_by_one.float(), rtol=0.1, atol=0.05)
    assert torch.equal(value, each[0])
    exact = torch.func.jvp(scalars, (x.double(),), (tangent.double(),))[1]
    assert torch.allclose(pushed.double(), exact, rtol=0.1)
    assert torch.allclose(
        forward.double(), torch.func.jacfwd(scalars)(x.double()), rtol=0.15, atol=0.05
    )
    assert torch.allclose(
        hessian.double(), torch.func.hessian(scalars)(x.double()), rtol=0.3, atol=0.3
    )


def test_functional_call_with_per_sample_gradients() -> None:
    model, x, target = nn.Linear(4, 3), torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    parameters = {k: v.detach() for k, v in model.named_parameters()}

    def loss(p: dict[str, Tensor], sample: Tensor, label: Tensor) -> Tensor:
        out = torch.func.functional_call(model, p, (sample.unsqueeze(0),))
        return F.cross_entropy(out, label.unsqueeze(0)) * 2 + 1

    for policy in FUNC_POLICIES:
        with policy_region(policy):
            found = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(parameters, x, target)
        exact = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(parameters, x, target)
        for name in parameters:
            assert found[name].dtype == F32
            assert torch.allclose(found[name], exact[name], atol=0.05)


WHOLE_UNDER_VMAP = [
    *FUNC_POLICIES,
    Policy("OD", "bfloat16"),
    Policy("O2", "bfloat16", preset="paddle"),
    Policy("O1", "bfloat16", preset="torch-cpu"),
    Policy("O1", "bfloat16", widen_results=True),
]


@pytest.mark.parametrize("policy", WHOLE_UNDER_VMAP, ids=repr)
def test_operations_that_vmap_takes_apart_are_whole(policy: Policy) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 3))
    parameters = {k: v.detach() for k, v in model.named_parameters()}
    x, target = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])

    def call(p: dict[str, Tensor], sample: Tensor) -> Tensor:
        return torch.func.functional_call(model, p, (sample,))

    def loss(p: dict[str, Tensor], sample: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(call(p, sample), label)

    stacked = {name: torch.stack([value, value * 0.5]) for name, value in parameters.items()}

    def computed() -> tuple[Tensor, ...]:
        models = torch.func.vmap(call, (0, None))(stacked, x)
        gradients = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(parameters, x, target)
        return models, *gradients.values()

    def one_by_one() -> list[list[Tensor]]:
        models = [call({k: v[i] for k, v in stacked.items()}, x) for i in range(2)]
        gradients = [
            torch.func.grad(loss)(parameters, *each) for each in zip(x, target, strict=True)
        ]
        return [models, *([g[name] for g in gradients] for name in parameters)]

    def inside(p: dict[str, Tensor]) -> Tensor:
        with policy_region(policy):
            return call(p, x)

    with policy_region(policy):
        found, each = computed(), one_by_one()
    expected = [torch.stack(results) for results in each]
    for mine, plain in zip(
        (*found, torch.func.vmap(inside)(stacked)), (*expected, expected[0]), strict=True
    ):
        assert mine.dtype == plain.dtype
        assert torch.allclose(mine.float(), plain.float(), rtol=0.05, atol=0.02)


@pytest.mark.parametrize("preset", ["unamp", "torch-cuda", "paddle", "tensorflow", "apex"])
def test_a_layer_with_a_bias_is_one_operation_under_grad_too(preset: str) -> None:
    """torch.func takes `linear` apart, and not every preset lists its parts."""
    x, w, bias = torch.rand(2, 3), torch.rand(4, 3), torch.rand(4)
    seen = []

    def loss(x: Tensor) -> Tensor:
        seen.append(F.linear(x, w, bias))
        return seen[-1].float().sum()

    with unamp.autocast("cpu", "bfloat16", preset=preset):
        eager = F.linear(x, w, bias)
        torch.func.grad(loss)(x)
        torch.func.jvp(loss, (x,), (x,))
    assert eager.dtype == BF16
    assert [each.dtype for each in seen] == [BF16, BF16]


@pytest.mark.parametrize("policy", WHOLE_UNDER_VMAP, ids=repr)
def test_a_region_is_as_it_was_after_vmap(policy: Policy) -> None:
    x = torch.randn(3, 3)

    def dtypes() -> list[torch.dtype]:
        return [
            each.dtype
            for each in (x + x, x @ x, F.linear(x, x, x[0]), x.softmax(-1), F.layer_norm(x, (3,)))
        ]

    def fails(row: Tensor) -> Tensor:
        with unamp.autocast("cpu", allow="add"):
            raise ZeroDivisionError

    with policy_region(policy):
        before = dtypes()
        torch.func.vmap(torch.func.vmap(torch.sin))(x)
        assert dtypes() == before
        with pytest.raises(ZeroDivisionError):
            torch.func.vmap(fails)(x)
        assert dtypes() == before


def test_a_region_opened_inside_a_transformed_function() -> None:
    def inside(x: Tensor) -> Tensor:
        with unamp.autocast("cpu", allow="add"):
            assert (x + 1).dtype == BF16
            return (x.mm(x) + 1).float().sum()

    x = torch.rand(3, 3)
    gradient = torch.func.grad(inside)(x)
    assert gradient.dtype == F32
    assert torch.allclose(gradient, torch.func.grad(lambda t: (t.mm(t) + 1).sum())(x), atol=0.05)
    assert torch.func.vmap(inside)(torch.rand(2, 3, 3)).shape == (2,)


def test_other_peoples_autocast_in_the_same_process_is_unaffected() -> None:
    def plain(x: Tensor) -> Tensor:
        return ((x + 1) * 2).mm(x).sum()

    x = torch.rand(3, 3)
    with torch.autocast("cpu"):
        before = (
            torch.func.grad(plain)(x),
            torch.func.vmap(plain)(x[None]),
            (x + 1).dtype,
            (x @ x).dtype,
        )
    with policy_region(Policy("O3", "bfloat16", deny=("add", "mm"))), unamp.trace():
        # installs every kernel that there is
        plain(x)
    with torch.autocast("cpu"):
        after = (
            torch.func.grad(plain)(x),
            torch.func.vmap(plain)(x[None]),
            (x + 1).dtype,
            (x @ x).dtype,
        )
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])
    assert before[2:] == after[2:] == (F32, BF16)
