"""float8 on torch: a trace's shadow shows a product's error, and `tune` studies a network."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unamp
from unamp.adapter.float8 import format_of, in_float8, rounded
from unamp.adapter.records import Shadow


def held(x: Tensor, dtype: type = ml_dtypes.float8_e4m3fn, axis: int | None = None) -> Tensor:
    """Return a tensor rounded to float8 with a scale, computed by NumPy and ml_dtypes."""
    array = x.detach().numpy()
    most = np.abs(array).max(axis=axis, keepdims=axis is not None)
    largest = float(ml_dtypes.finfo(dtype).max)
    scale = (largest / np.maximum(most.astype(np.float64), 1e-12)).astype(np.float32)
    return torch.from_numpy(
        (array * scale).clip(-largest, largest).astype(dtype).astype(np.float32) / scale
    )


def shadow_of(call, dtype: str) -> Shadow:
    with unamp.trace(shadow=dtype) as trace:
        call()
    (record,) = trace.records
    return record.shadow


def test_numbers_are_those_of_ml_dtypes_and_of_torch() -> None:
    torch.manual_seed(0)
    x = torch.randn(50_000) * torch.exp(4 * torch.randn(50_000))
    for name, own in (("float8_e4m3", torch.float8_e4m3fn), ("float8_e5m2", torch.float8_e5m2)):
        form = format_of(name)[0]
        inside = x.clamp(-form.largest, form.largest)
        found = rounded(x, form, torch.where)
        assert torch.equal(found.view(torch.int32), inside.to(own).float().view(torch.int32))


SIZED = {
    "linear": lambda a, b: F.linear(a, b.T, torch.ones(6)),
    "matmul": torch.matmul,
    "addmm": lambda a, b: torch.addmm(torch.ones(6), a, b),
    "einsum": lambda a, b: torch.einsum("ij,jk->ik", a, b),
}


@pytest.mark.parametrize("op", SIZED)
@pytest.mark.parametrize("rows", [False, True])
def test_the_error_of_a_product(op: str, rows: bool) -> None:
    torch.manual_seed(1)
    a, b = torch.randn(5, 48) * torch.logspace(-2, 2, 5)[:, None], torch.randn(48, 6)
    exact = SIZED[op](a, b).double()
    low = SIZED[op](held(a, axis=1 if rows else None), held(b, axis=0 if rows else None)).double()
    found = shadow_of(lambda: SIZED[op](a, b), "float8_e4m3_rows" if rows else "float8_e4m3")
    assert found.error == pytest.approx(float((low - exact).norm() / exact.norm()), rel=1e-6)
    assert (found.left_out, found.overflow, found.subnormal) == ("", 0, 0.0)


def test_a_tensor_may_be_both_factors() -> None:
    x = torch.linspace(-3, 5, 64).reshape(8, 8)
    exact, low = (x @ x).double(), (held(x, axis=1) @ held(x, axis=0)).double()
    assert shadow_of(lambda: x @ x, "float8_e4m3_rows").error == pytest.approx(
        float((low - exact).norm() / exact.norm())
    )


def test_what_is_no_product_of_two_is_said() -> None:
    x = torch.rand(4, 4)
    assert (
        shadow_of(lambda: x.exp(), "float8_e4m3").left_out
        == "float8 is for products of two matrices"
    )
    assert (
        "multiplies 3"
        in shadow_of(lambda: torch.einsum("ij,jk,kl->il", x, x, x), "float8_e4m3").left_out
    )
    assert (
        "does not sum"
        in shadow_of(lambda: torch.einsum("ij,ij->ij", x, x), "float8_e4m3_rows").left_out
    )


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32), nn.LayerNorm(32), nn.Linear(32, 10)
    )


def test_a_region_reaches_no_product_in_float8() -> None:
    a, b = torch.randn(4, 8), torch.randn(8, 4)
    alone = shadow_of(lambda: a @ b, "float8_e4m3")
    with unamp.autocast("cpu", torch.bfloat16, allow=["mul", "add", "div"], deny="matmul"):
        assert shadow_of(lambda: a @ b, "float8_e4m3") == alone


def test_a_layer_from_float8_and_its_gradients() -> None:
    """The backward pass multiplies gradients rounded to e5m2 with factors rounded to e4m3.

    The gradient of a bias is exact.
    """
    torch.manual_seed(2)
    net, x, weight = (
        nn.Sequential(nn.Linear(16, 8)),
        torch.randn(4, 16, requires_grad=True),
        torch.randn(4, 8),
    )
    with unamp.trace(), in_float8("float8_e4m3", ["Sequential.0"]) as emulation:
        result = net(x)
        (result * weight).sum().backward()
    assert emulation.reached == {"Sequential.0"}
    gradient, low_x, low_w = held(weight, ml_dtypes.float8_e5m2), held(x), held(net[0].weight)
    torch.testing.assert_close(result, low_x @ low_w.T + net[0].bias)
    torch.testing.assert_close(x.grad, gradient @ low_w)
    torch.testing.assert_close(net[0].weight.grad, gradient.T @ low_x)
    torch.testing.assert_close(net[0].bias.grad, weight.sum(0))
    assert not torch.allclose(x.grad, weight @ low_w)


def test_a_layer_that_is_not_named_computes_as_ever() -> None:
    net, x = network(), torch.randn(4, 32)
    with unamp.trace(), in_float8("float8_e4m3", ["Sequential.9", "Sequential"]) as emulation:
        assert torch.equal(net(x), net(x))
    assert torch.equal(net(x), net(x))
    with unamp.trace():
        found = net(x)
    assert torch.equal(found, net(x))
    assert not emulation.reached


def test_the_study_finds_the_layer_that_cannot() -> None:
    """Outliers in one column of an input leave the other columns without digits.

    This holds where the tensor has a single scale.
    """
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 16), nn.Linear(16, 10)
    ).eval()
    with torch.no_grad():
        net[1].weight[:, 0], net[0].weight[0] = 0.0, 0.0
        # the largest input of the second layer, whose weight for it is zero
        net[0].bias[0] = 1e6
    batches = [torch.randn(8, 64) for _ in range(2)]
    study = unamp.tune(net, net, batches, dtype="float8_e4m3", tolerance=0.1)
    by_name = {each.layer: each for each in study.layers}
    assert study.names == ["0", "2"]
    assert by_name["1"].why == "beyond the tolerance alone"
    assert by_name["3"].why == "its weight is 10 x 16; kernels take multiples of 16"
    assert by_name["1"].own > 0.5 > 0.1 > study.error > 0
    assert sum(each.work for each in study.layers) == pytest.approx(1)
    # A scale for each row does not help: every row has the outlier.
    assert unamp.tune(net, net, batches, dtype="float8_e4m3_rows", tolerance=0.1).names == [
        "0",
        "2",
    ]

    reference = net(batches[0]).detach()
    with unamp.trace(), in_float8("float8_e4m3", ["Sequential.0", "Sequential.2"]):
        low = net(batches[0]).detach()
    assert float((low - reference).norm() / reference.norm()) <= study.error


def test_the_layers_that_are_too_many_together_stay() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(4))).eval()
    batches = [torch.randn(16, 64)]
    alone = [
        each.alone
        for each in unamp.tune(net, net, batches, dtype="float8_e4m3", tolerance=1.0).layers
    ]
    study = unamp.tune(net, net, batches, dtype="float8_e4m3", tolerance=max(alone) * 1.2)
    assert 0 < len(study.names) < 4
    assert {each.why for each in study.layers} == {"", "beyond the tolerance with the others"}
    assert study.error <= study.tolerance


def test_gradients_of_training_may_be_studied() -> None:
    net = network()

    def gradients(x: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(net(x).square().mean(), list(net.parameters())))

    study = unamp.tune(gradients, net, [torch.randn(8, 32)], dtype="float8_e4m3", tolerance=0.5)
    assert study.names == ["0", "2"]
    assert all(parameter.grad is None for parameter in net.parameters())


def test_attention_has_no_weight_that_a_list_could_name() -> None:
    net, x = nn.MultiheadAttention(32, 2, batch_first=True).eval(), torch.randn(2, 4, 32)
    outer = nn.Sequential()
    outer.attention = net
    outer.forward = lambda x: net(x, x, x)[0]
    study = unamp.tune(outer, outer, [x], dtype="float8_e4m3", tolerance=0.05)
    assert study.names == []
    assert {each.why for each in study.layers} <= {"it has no weight of its own"}


def test_a_network_without_products_is_refused() -> None:
    net = nn.Sequential(nn.ReLU())
    with pytest.raises(ValueError, match="no layer of the network multiplies two matrices"):
        unamp.tune(net, net, [torch.randn(3)], dtype="float8_e4m3", tolerance=0.05)
    drops = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5))
    with pytest.raises(ValueError, match="dropout is on in 1"):
        unamp.tune(drops, drops, [torch.randn(3, 16)], dtype="float8_e4m3", tolerance=0.05)
