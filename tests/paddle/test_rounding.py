"""Large tensors are rounded to bfloat16 without casts: the same numbers, and tensors like any other."""

import copy
import pickle

import numpy as np
import paddle
import pytest
from unamp_paddle import rounding
from unamp_paddle.facts import facts
from unamp_paddle.operations import PaddleOperations

import unamp
from unamp import Policy, policy_region

BF16, F32 = paddle.bfloat16, paddle.float32


def cast(x):
    return x.astype(BF16).astype(F32)


def same(a, b):
    return np.array_equal(a.numpy().view(np.uint32), b.numpy().view(np.uint32))


@pytest.fixture(params=["rounded", "cast"])
def way(request, monkeypatch):
    if request.param == "cast":
        monkeypatch.setattr(rounding, "_SMALL", 1 << 62)
    return request.param


@pytest.mark.parametrize("sign", [0, 1])
@pytest.mark.parametrize("exponent", [1, 60, 126, 127, 128, 180])
def test_every_mantissa_is_rounded_as_a_cast_does(exponent, sign):
    bits = np.arange(1 << 23, dtype=np.uint32) | np.uint32(exponent << 23 | sign << 31)
    x = paddle.to_tensor(bits.view(np.float32))
    assert same(rounding.nearest(x, BF16), cast(x))
    assert same(rounding.narrow(x, BF16).astype(F32), cast(x))
    expected = cast(x)
    assert same(rounding.narrow(x, BF16, rounding.in_place).astype(F32), expected)


@pytest.mark.parametrize("number", [0.0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, -3e38, 1e19])
def test_special_numbers(number):
    x = np.linspace(-1, 1, 1 << 15, dtype=np.float32)
    x[777] = number
    x = paddle.to_tensor(x)
    assert np.array_equal(rounding.nearest(x, BF16).numpy(), cast(x).numpy(), equal_nan=True)
    assert np.array_equal(rounding.narrow(x, BF16).astype(F32).numpy(), cast(x).numpy(), equal_nan=True)
    assert np.signbit(rounding.nearest(x, BF16).numpy()[777]) == np.signbit(np.float32(number))
    expected = cast(x).numpy()
    assert np.array_equal(rounding.narrow(x, BF16, rounding.in_place).astype(F32).numpy(), expected, equal_nan=True)


def encoder(way):
    paddle.seed(5)
    layer, x = paddle.nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0), paddle.randn([4, 40, 128])
    x.stop_gradient = False
    with unamp.autocast(dtype="bfloat16"):
        y = layer(x)
        loss = (y * y).astype("float32").mean()
    loss.backward()
    return [y, x.grad, *(p.grad for p in layer.parameters())]


def test_a_network_comes_to_the_same_bits(monkeypatch):
    rounded = encoder("rounded")
    monkeypatch.setattr(rounding, "_SMALL", 1 << 62)
    for a, b in zip(rounded, encoder("cast"), strict=True):
        assert same(a, b)


def large(*shape):
    x = paddle.randn(shape)
    x.stop_gradient = False
    return x


def test_large_results_are_views(way):
    with policy_region(Policy("O1", "bfloat16")):
        h = large(160, 160) @ large(160, 160)
    assert h.is_contiguous() == (way == "cast")
    assert h.dtype == BF16


def test_gradients_reach_a_low_tensor(way):
    x = large(160, 160)
    seen = []
    with policy_region(Policy("O1", "bfloat16")):
        h = x @ x
        h.register_hook(lambda grad: seen.append(grad.dtype))
        y = (paddle.nn.functional.relu(h) @ h).astype("float32").sum()
    (grad,) = paddle.grad(y, h, retain_graph=True)
    assert grad.dtype == BF16
    assert seen == [BF16]
    y.backward()
    assert x.grad.dtype == F32


def test_several_uses_add_up(way):
    x = large(160, 160)
    with policy_region(Policy("O1", "bfloat16")):
        h = x @ paddle.eye(160)
        (h + h + h).astype("float32").sum().backward()
    assert (x.grad.numpy() == 3).all()


def test_a_change_in_place_is_seen_by_whoever_computes_next(way):
    with policy_region(Policy("O1", "bfloat16")):
        h = large(160, 160) @ large(160, 160)
        view = h.reshape([64, 400])
        with paddle.no_grad():
            h.fill_(2.0)
            assert float((view * view).astype("float32").mean()) == 4.0
            h[0] = 3.0
            assert float((h * h).astype("float32")[0].mean()) == 9.0
            h.reshape_([400, 64])
            assert (h * h).shape == [400, 64]


def test_a_change_in_place_of_what_backward_needs_is_an_error(way):
    with policy_region(Policy("O1", "bfloat16")):
        h = large(160, 160) @ large(160, 160)
        y = (h * h).astype("float32").sum()
        h.fill_(0.0)
    # A cast keeps a copy for the backward pass, a view does not.
    if way == "cast":
        y.backward()
    else:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


def test_a_cast_to_float32_is_a_copy(way):
    with policy_region(Policy("O1", "bfloat16", deny="square")):
        h = large(160, 160) @ large(160, 160)
        y = paddle.square(h).sum()
        h.fill_(0.0)
    y.backward()


def test_views_of_all_kinds(way):
    with policy_region(Policy("O1", "bfloat16")):
        h = large(8, 40, 160) @ large(160, 160)
        for view in (
            h.transpose([2, 0, 1]), h.reshape([320, 160]).t(), h[2:5, ::2, 3:], h.unsqueeze(1).transpose([1, 0, 3, 2]),
            paddle.split(h, 2, axis=2)[1], h.flatten(), h.unbind(0)[3],
        ):  # fmt: skip
            assert same((view * 1.0).astype(F32), view.astype(F32))


def test_double_grad_of_large_tensors(way):
    x = paddle.full([160, 160], 0.01)
    x.stop_gradient = False
    with policy_region(Policy("O1", "bfloat16")):
        y = paddle.matmul(x, x).astype("float32").square().sum()
        (first,) = paddle.grad(y, x, create_graph=True)
        (second,) = paddle.grad(first.sum(), x)
    # y = n^2 (n x^2)^2 for one number x everywhere: the gradient's elements add up to 4 n^4 x^3, and change by 12 n^2 x^2 each.
    np.testing.assert_allclose(float(first.sum()), 4 * 160**4 * 1e-6, rtol=2e-2)
    np.testing.assert_allclose(float(second.mean()), 12 * 160**2 * 1e-4, rtol=2e-2)


OWN = sorted(facts().own_results & {"add", "sub", "mul", "matmul", "mm", "bmm", "linear", "addmm", "baddbmm"})


@pytest.mark.parametrize("op", OWN)
def test_backward_does_not_miss_a_result_that_was_rounded_in_place(op):
    shapes = {"bmm": [(2, 128, 128)] * 2, "baddbmm": [(2, 128, 128)] * 3, "addmm": [(128, 128)] * 3}
    inputs = [large(*shape) for shape in shapes.get(op, [(128, 128)] * 2)]
    with policy_region(Policy("O3", "bfloat16")):
        result = PaddleOperations()[op](*inputs)
    assert hasattr(result, "_unamp_shared")
    result.astype("float32").sum().backward()
    assert all(bool(paddle.isfinite(x.grad).all()) for x in inputs)


def test_whoever_takes_tensors_takes_views(tmp_path):
    with policy_region(Policy("O1", "bfloat16")):
        h = large(160, 160).detach() @ large(160, 160).detach()
    assert not h.is_contiguous()
    paddle.save(h, str(tmp_path / "h"))
    doubled = paddle.jit.to_static(lambda x: x.astype("float32") * 2)
    copies = [
        h.clone(), copy.deepcopy(h), pickle.loads(pickle.dumps(h)), paddle.load(str(tmp_path / "h")),
        paddle.concat([h, h])[:160],
        paddle.utils.dlpack.from_dlpack(paddle.utils.dlpack.to_dlpack(h)), paddle.to_tensor(h.numpy()).view(BF16),
    ]  # fmt: skip
    expected = np.array(h.astype(F32).tolist(), np.float32)
    for other in copies:
        assert np.array_equal(other.astype(F32).numpy(), expected)
    assert np.array_equal(doubled(h).numpy(), 2 * expected)
