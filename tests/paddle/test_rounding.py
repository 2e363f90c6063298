"""Large tensors are rounded without casts: the same numbers, and tensors like any other."""

import copy
import math
import shutil

import numpy as np
import paddle
import pytest
from unamp_paddle import arithmetic, compiled, rounding
from unamp_paddle.conformance.operations import PaddleOperations
from unamp_paddle.facts import facts
from unamp_paddle.state import LOW, NAMES

import unamp
from unamp import FrameworkNotSupported, Policy, policy_region

F16, BF16, F32 = paddle.float16, paddle.bfloat16, paddle.float32
#: The compiled loops where there is a compiler, what Paddle's own arithmetic can do, and nothing but casts.
WAYS = ["compiled"] * bool(shutil.which("cc")) + ["arithmetic", "cast"]


def cast(x, low=BF16):
    return x.astype(low).astype(F32)


def same(a, b):
    return np.array_equal(a.numpy().view(np.uint32), b.numpy().view(np.uint32))


@pytest.fixture(scope="module")
def loops(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("UNAMP_PADDLE_COMPILED", raising=False)
        assert compiled._load() is None
        compiled.build()
        loop = compiled._load()
    return tuple(tuple(loop(f"{does}_{NAMES[low]}") for does in ("round", "narrow", "widen")) for low in LOW), loop("gather")


def take(way, request, monkeypatch):
    loops, gather = request.getfixturevalue("loops") if way == "compiled" else ((), None)
    monkeypatch.setattr(arithmetic, "_LOOPS", loops)
    monkeypatch.setattr(arithmetic, "_GATHER", gather)
    fewest = {"compiled": (1 << 11, 1 << 11), "arithmetic": (math.inf, 1 << 14), "cast": (math.inf, math.inf)}
    monkeypatch.setattr(arithmetic, "FEWEST", fewest[way])


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    take(request.param, request, monkeypatch)
    return request.param


@pytest.fixture(params=["bfloat16", "float16"])
def low(request):
    return getattr(paddle, request.param)


def every_way(x, low):
    yield rounding.nearest(x, low)
    yield rounding.narrow(x, low).astype(F32)
    yield rounding.widen(rounding.narrow(x, low))
    yield rounding.widen(x.astype(low))
    copied = x.clone()  # which the last one may round where it is
    yield rounding.widen(rounding.narrow(copied, low, rounding.in_place))


@pytest.mark.parametrize("exponent", [0, 1, 60, 101, 102, 103, 112, 113, 126, 127, 142, 143, 180, 253])
def test_all_kinds_of_numbers_are_rounded_as_a_cast_does(exponent, low, way):
    if way == "arithmetic" and exponent == 0:
        exponent = 2  # below the smallest normal number it may be off by one part in 2**133
    mantissas = np.concatenate([np.arange(0, 1 << 23, 211), np.arange(0, 1 << 23, 1 << 12), (1 << 23) - np.arange(1, 1 << 13)])
    bits = (mantissas.astype(np.uint32) | np.uint32(exponent << 23))[None] | np.array([[0], [1 << 31]], np.uint32)
    x = paddle.to_tensor(bits.view(np.float32))
    for other in every_way(x, low):
        assert same(other, cast(x, low))


def test_every_bfloat16_and_float16_is_itself(low, way):
    bits = np.arange(1 << 16, dtype=np.uint16)
    x = paddle.to_tensor(bits).view(low)
    wide = x.astype(F32).numpy()
    assert np.array_equal(rounding.widen(x).numpy(), wide, equal_nan=True)
    assert np.array_equal(rounding.nearest(paddle.to_tensor(wide), low).numpy(), wide, equal_nan=True)


@pytest.mark.parametrize(
    "number", [0.0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, -3e38, 1e19, 65519.996, 65520.0, -65520.0, 1e-40]
)
def test_special_numbers(number, low, way):
    if way == "arithmetic" and number == 1e-40:
        number = 0.0
    x = np.linspace(-1, 1, 1 << 15, dtype=np.float32)
    x[777] = number
    x = paddle.to_tensor(x)
    expected = cast(x, low).numpy()
    for other in every_way(x, low):
        assert np.array_equal(other.numpy(), expected, equal_nan=True)
    assert np.signbit(rounding.nearest(x, low).numpy()[777]) == np.signbit(np.float32(number))


@pytest.mark.parametrize("count", [2048, 2049, 2055, 5001, 65537 + 11])
def test_any_number_of_numbers(count, low, way):
    x = paddle.randn([count])
    for other in every_way(x, low):
        assert same(other, cast(x, low))


def encoder(low):
    paddle.seed(5)
    layer, x = paddle.nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0), paddle.randn([4, 40, 128])
    x.stop_gradient = False
    with unamp.autocast(dtype=NAMES[low]):
        y = layer(x)
        loss = (y * y).astype("float32").mean()
    loss.backward()
    return [y.astype("float32"), x.grad, *(p.grad for p in layer.parameters())]


def _strided(x):
    """Yield views of a tensor of three dimensions, with strides of all kinds."""
    yield x.transpose([1, 0, 2])
    yield x.transpose([2, 1, 0])
    yield x[1:, ::2, 3:]
    yield paddle.as_strided(x, [3, 2, 1, 5, 4], [0, 40, 7, 1, 3], 8)
    yield paddle.as_strided(x, [1] * 7 + [2, 6], [9] * 7 + [5, 2])
    yield paddle.as_strided(x, [2, 0, 3], [1, 2, 3])
    yield paddle.as_strided(x, [6], [2], 4)


@pytest.mark.parametrize("number", range(7))
def test_the_numbers_of_a_strided_tensor(number, low, way):
    for dtype in (F32, low):
        x = paddle.arange(6 * 7 * 8).reshape([6, 7, 8]).astype(dtype)
        view = list(_strided(x))[number]
        found, expected = arithmetic.dense(view), paddle.assign(view)
        assert found.is_contiguous()
        assert (found.shape, found.dtype) == (expected.shape, dtype)
        assert found.numpy().tobytes() == expected.numpy().tobytes()


def test_a_network_comes_to_the_same_bits(request, monkeypatch, low):
    expected = None
    for way in WAYS:
        with monkeypatch.context() as patch:
            take(way, request, patch)
            found = encoder(low)
        expected = expected or found
        for a, b in zip(found, expected, strict=True):
            assert same(a, b)


def with_shared_parameter(low):
    """A parameter is used by operations whose gradients are memory of their own, and by others."""
    paddle.seed(5)
    w = paddle.create_parameter([160, 160], "float32")
    x = paddle.randn([128, 160])
    x.stop_gradient = False
    with policy_region(Policy("O3", NAMES[low])):
        y = paddle.tanh(w) + w.t() + w * w
        loss = (paddle.matmul(paddle.matmul(x, w), y) * x + x).astype("float32").square().mean()
    loss.backward()
    return [x.grad, w.grad]


def test_a_parameter_that_many_operations_share_has_the_same_gradient(request, monkeypatch, low):
    expected = None
    for way in WAYS:
        with monkeypatch.context() as patch:
            take(way, request, patch)
            found = with_shared_parameter(low)
        expected = expected or found
        for a, b in zip(found, expected, strict=True):
            assert same(a, b)


@pytest.mark.parametrize("op", ["relu", "add", "mul", "reshape", "softmax", "matmul"])
def test_a_gradient_that_a_hook_was_given_stays_as_it_was(op, way, low):
    use = {
        "relu": paddle.nn.functional.relu, "softmax": paddle.nn.functional.softmax, "add": lambda h: h + h,
        "mul": lambda h: h * 3.0, "reshape": lambda h: h.reshape([25600]) * 1.5, "matmul": lambda h: h @ (h * 0.01),
    }[op]  # fmt: skip
    seen = []
    with policy_region(Policy("O3", NAMES[low])):
        h = use(large(160, 160) @ large(160, 160))
        h.register_hook(lambda grad: seen.append((grad, grad.astype(F32).numpy())))
        loss = (use(h) * h).astype("float32").sum() if op != "reshape" else (h * h).astype("float32").sum()
    loss.backward()
    ((grad, before),) = seen
    assert np.array_equal(grad.astype(F32).numpy(), before)


def test_an_input_is_rounded_once_for_queries_keys_and_values(request, monkeypatch):
    take("compiled" if "compiled" in WAYS else "arithmetic", request, monkeypatch)
    attention, x = paddle.nn.MultiHeadAttention(128, 4), large(4, 40, 128)
    counted = []
    monkeypatch.setattr(rounding, "rounded", lambda t, low: counted.append(t.shape) or arithmetic.rounded(t, low))
    monkeypatch.setattr(arithmetic.certainly_rounded, "__defaults__", (rounding.rounded,))
    with unamp.autocast(dtype="bfloat16"):
        attention(x)
    assert counted.count([4, 40, 128]) == 1


def large(*shape):
    x = paddle.randn(shape)
    x.stop_gradient = False
    return x


def test_large_results_know_their_numbers(way, low):
    with policy_region(Policy("O1", NAMES[low])):
        h = large(160, 160) @ large(160, 160)
    assert hasattr(h, "_unamp_shared") == (arithmetic.FEWEST[low is BF16] < math.inf)
    assert h.is_contiguous() == (low is F16 or way == "cast")
    assert h.dtype == low


def test_gradients_reach_a_low_tensor(way, low):
    x = large(160, 160)
    seen = []
    with policy_region(Policy("O1", NAMES[low])):
        h = x @ x
        h.register_hook(lambda grad: seen.append(grad.dtype))
        y = (paddle.nn.functional.relu(h) @ h).astype("float32").sum()
    (grad,) = paddle.grad(y, h, retain_graph=True)
    assert grad.dtype == low
    assert seen == [low]
    y.backward()
    assert x.grad.dtype == F32


def test_several_uses_add_up(way, low):
    x = large(160, 160)
    with policy_region(Policy("O1", NAMES[low])):
        h = x @ paddle.eye(160)
        (h + h + h).astype("float32").sum().backward()
    assert (x.grad.numpy() == 3).all()


def test_a_change_in_place_is_seen_by_whoever_computes_next(way, low):
    with policy_region(Policy("O1", NAMES[low])):
        h = large(160, 160) @ large(160, 160)
        view = h.reshape([64, 400])
        with paddle.no_grad():
            h.fill_(2.0)
            assert float((view * view).astype("float32").mean()) == 4.0
            h[0] = 3.0
            assert float((h * h).astype("float32")[0].mean()) == 9.0
            h.reshape_([400, 64])
            assert (h * h).shape == [400, 64]


def test_a_change_in_place_of_what_backward_needs_is_an_error(way, low):
    with policy_region(Policy("O1", NAMES[low])):
        h = large(160, 160) @ large(160, 160)
        y = (h * h).astype("float32").sum()
        h.fill_(0.0)
    # A cast keeps a copy for the backward pass, and so does whoever knows the numbers; a view does not.
    if way == "cast" or low is F16:
        y.backward()
    else:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


def test_gradients_from_all_sides_add_up(way, low):
    x = paddle.full([160, 160], 2.0)
    x.stop_gradient = False
    with policy_region(Policy("O1", NAMES[low])):
        h = x @ paddle.eye(160)
        used = (paddle.nn.functional.relu(h) * h).astype("float32").sum()  # 2 h
        (used + 3 * h.astype("float32").sum() + (h.reshape([25600]) * 5.0).astype("float32").sum() + h.sum()).backward()
    assert (x.grad.numpy() == 4 + 3 + 5 + 1).all()


def test_results_in_float32_are_the_callers(way, low):
    with policy_region(Policy("O1", NAMES[low], deny="square")):
        h = (large(160, 160) @ large(160, 160)).detach()
        wide = paddle.square(h).sqrt()
        before = cast(h.clone(), low)
    with policy_region(Policy("O1", NAMES[low], widen_results=True, allow="relu")):
        y = paddle.nn.functional.relu(h)
        assert y.dtype == F32
        y.fill_(-1.0)
    assert same(cast(h, low), before)
    np.testing.assert_allclose(wide.numpy(), before.abs().numpy(), rtol=1e-6)


def test_a_cast_to_float32_is_a_copy(way, low):
    with policy_region(Policy("O1", NAMES[low], deny="square")):
        h = large(160, 160) @ large(160, 160)
        y = paddle.square(h).sum()
        h.fill_(0.0)
    y.backward()


def test_views_of_all_kinds(way, low):
    with policy_region(Policy("O1", NAMES[low])):
        h = large(8, 40, 160) @ large(160, 160)
        for view in (
            h.transpose([2, 0, 1]), h.reshape([320, 160]).t(), h[2:5, ::2, 3:], h.unsqueeze(1).transpose([1, 0, 3, 2]),
            paddle.split(h, 2, axis=2)[1], h.flatten(), h.unbind(0)[3],
        ):  # fmt: skip
            assert same((view * 1.0).astype(F32), view.astype(F32))


def test_double_grad_of_large_tensors(way, low):
    x = paddle.full([160, 160], 0.01)
    x.stop_gradient = False
    with policy_region(Policy("O1", NAMES[low])):
        y = paddle.matmul(x, x).astype("float32").square().sum()
        (first,) = paddle.grad(y, x, create_graph=True)
        (second,) = paddle.grad(first.sum(), x)
    # y = n^2 (n x^2)^2 for one number x everywhere: the gradient's elements add up to 4 n^4 x^3, and change by 12 n^2 x^2 each.
    np.testing.assert_allclose(float(first.sum()), 4 * 160**4 * 1e-6, rtol=2e-2)
    np.testing.assert_allclose(float(second.mean()), 12 * 160**2 * 1e-4, rtol=2e-2)


OWN = sorted(facts().own_results & {"add", "sub", "mul", "matmul", "mm", "bmm", "linear", "addmm", "baddbmm"})


@pytest.mark.parametrize("op", OWN)
def test_backward_does_not_miss_a_result_that_was_rounded_in_place(op, low, request, monkeypatch):
    take("compiled" if low is F16 and "compiled" in WAYS else "arithmetic", request, monkeypatch)
    shapes = {"bmm": [(2, 128, 128)] * 2, "baddbmm": [(2, 128, 128)] * 3, "addmm": [(128, 128)] * 3}
    inputs = [large(*shape) for shape in shapes.get(op, [(128, 128)] * 2)]
    with policy_region(Policy("O3", NAMES[low])):
        result = PaddleOperations()[op](*inputs)
    assert hasattr(result, "_unamp_shared") == (arithmetic.FEWEST[low is BF16] < math.inf)
    result.astype("float32").sum().backward()
    assert all(bool(paddle.isfinite(x.grad).all()) for x in inputs)


def test_whoever_takes_tensors_takes_views(tmp_path, pickled):
    with policy_region(Policy("O1", "bfloat16")):
        h = large(160, 160).detach() @ large(160, 160).detach()
    assert not h.is_contiguous()
    paddle.save(h, str(tmp_path / "h"))
    doubled = paddle.jit.to_static(lambda x: x.astype("float32") * 2)
    copies = [
        h.clone(), copy.deepcopy(h), *pickled(h), paddle.load(str(tmp_path / "h")),
        paddle.concat([h, h])[:160],
        paddle.utils.dlpack.from_dlpack(paddle.utils.dlpack.to_dlpack(h)), paddle.to_tensor(h.numpy()).view(BF16),
    ]  # fmt: skip
    expected = np.array(h.astype(F32).tolist(), np.float32)
    for other in copies:
        assert np.array_equal(other.astype(F32).numpy(), expected)
    assert np.array_equal(doubled(h).numpy(), 2 * expected)


def test_it_may_have_to_be_built(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("UNAMP_PADDLE_COMPILED", "1")
    with pytest.raises(FrameworkNotSupported, match="python -m unamp_paddle"):
        compiled._load()
    compiled.place().parent.mkdir(parents=True)
    compiled.place().write_bytes(b"no library")
    with pytest.raises(ImportError, match=r"delete .*unamp_paddle_rounding\.so"):
        compiled._load()
    monkeypatch.setenv("UNAMP_PADDLE_COMPILED", "0")
    assert compiled._load() is None


def test_without_a_compiler_nothing_is_built(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(OSError, match="no-such-compiler"):
        compiled.build()
    assert not compiled.place().exists()
