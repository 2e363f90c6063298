"""Operations of eager mode follow the region's policy."""

import copy
import itertools
import sys
import types
from typing import Any

import numpy as np
import paddle
import pytest
from eager import *  # noqa: F403
from eager import under
from paddle import nn
from paddle.nn import functional as F

import unamp


def test_the_same_operation_by_every_way_to_call_it(low):
    from paddle.tensor.linalg import matmul as early

    x, y = paddle.rand([4, 4]), paddle.rand([4, 4])
    with under(low=low):
        ways = [
            x @ y,
            x.matmul(y),
            paddle.matmul(x, y),
            paddle.linalg.matmul(x, y),
            paddle.tensor.matmul(x, y),
        ]
        ways += [
            paddle._C_ops.matmul(x, y, False, False),
            paddle.tensor.linalg.matmul(x, y),
            paddle.mm(x, y),
            x.mm(y),
        ]
    assert early is paddle._C_ops.matmul
    assert {w.dtype for w in ways} == {low}


def test_functions_bound_early_in_a_users_module(low):
    x = paddle.rand([4, 4])
    with under(low=low):
        assert bound_early(x, x, False, False).dtype == low
        assert bound_linear(x, x).dtype == low
    assert bound_early(x, x, False, False).dtype == paddle.float32


bound_early = paddle._C_ops.matmul
bound_linear = F.linear


def test_functions_bound_early_in_a_module_that_takes_the_place_of_another(low, monkeypatch):
    x = paddle.rand([4, 4])
    for _ in range(3):  # each time as many modules, with the same names
        users = types.ModuleType("a_users_module")
        users.product = paddle._C_ops.matmul
        monkeypatch.setitem(sys.modules, "a_users_module", users)
        with under(low=low):
            assert users.product(x, x, False, False).dtype == low
        assert users.product(x, x, False, False).dtype == paddle.float32


def test_bias_belongs_to_its_operation(low):
    image = paddle.rand([2, 4, 8, 8])
    line = paddle.rand([2, 4, 8])
    volume = paddle.rand([1, 4, 4, 4, 4])
    layers = [
        (paddle.nn.Conv2D(4, 3, 3), image), (paddle.nn.Conv2DTranspose(4, 3, 3), image),
        (paddle.nn.Conv1D(4, 3, 3), line), (paddle.nn.Conv1DTranspose(4, 3, 3), line),
        (paddle.nn.Conv3D(4, 3, 3), volume), (paddle.nn.Linear(8, 3), line),
        (paddle.nn.Conv3DTranspose(4, 3, 3), volume), (paddle.nn.Conv2D(4, 4, 3, groups=4), image),
    ]  # fmt: skip
    with under(low=low):
        assert [str(layer) for layer, x in layers if layer(x).dtype != low] == []


def test_norms_keep_parameters_and_statistics(low):
    x = paddle.randn([6, 4, 5, 5])
    x.stop_gradient = False
    for norm in (
        paddle.nn.BatchNorm2D(4),
        paddle.nn.GroupNorm(2, 4),
        paddle.nn.InstanceNorm2D(4),
        paddle.nn.LayerNorm([5]),
    ):
        with under("O3", low):
            y = norm(x)
        y.astype("float32").sum().backward()
        assert y.dtype == low
        assert {p.dtype for p in norm.parameters()} == {paddle.float32}
        assert {p.grad.dtype for p in norm.parameters() if not p.stop_gradient} == {paddle.float32}
        if isinstance(norm, paddle.nn.BatchNorm2D):
            assert norm._mean.dtype == paddle.float32
            assert float(norm._mean.abs().max()) > 0


@pytest.mark.parametrize("kind", [paddle.nn.LSTM, paddle.nn.GRU, paddle.nn.SimpleRNN])
def test_recurrent_layers_are_one_operation(low, kind):
    layer, x = kind(4, 5, num_layers=2, direction="bidirect"), paddle.rand([2, 3, 4])
    with unamp.trace() as trace, under(low=low):
        out, _ = layer(x)
    assert out.dtype == low
    assert [r.op for r in trace.records] == [
        {"SimpleRNN": "rnn"}.get(kind.__name__, kind.__name__.lower())
    ]


def test_cells_and_attention(low):
    x = paddle.rand([2, 3, 8])
    with under(low=low):
        assert paddle.nn.LSTMCell(8, 5)(x[:, 0])[0].dtype == low
        assert paddle.nn.RNN(paddle.nn.GRUCell(8, 5))(x)[0].dtype == low
        assert paddle.nn.MultiHeadAttention(8, 2)(x).dtype == low
        # the layer ends in a layer norm
        assert paddle.nn.TransformerEncoderLayer(8, 2, 16)(x).dtype == paddle.float32
        assert paddle.einsum("bij,bkj->bik", x, x).dtype == low
        q = paddle.rand([1, 4, 2, 8])
        assert F.scaled_dot_product_attention(q, q, q).dtype == low
    with under(low=low, deny="multi_head_attention"):
        assert paddle.nn.MultiHeadAttention(8, 2)(x).dtype == paddle.float32


CHANGED_IN_PLACE = {
    "frac_": lambda x, value: x.frac_(),
    "masked_scatter_": lambda x, value: x.masked_scatter_(
        paddle.to_tensor([True, False, True]), value
    ),
    "nan_to_num_": lambda x, value: x.nan_to_num_(),
    "where_": lambda x, value: paddle.where_(paddle.to_tensor([True, False, True]), x, value),
}


@pytest.mark.parametrize(
    ("function", "full_graph"),
    [
        *((function, None) for function in CHANGED_IN_PLACE),
        # In a program `where_` is `where`, which widens.
        *itertools.product(["frac_", "masked_scatter_", "nan_to_num_"], [True, False]),
    ],
)
@pytest.mark.parametrize(
    ("own", "others"), [("bfloat16", "bfloat16"), ("bfloat16", "float32"), ("float32", "bfloat16")]
)
def test_what_is_changed_in_place_keeps_its_dtype_and_takes_any(own, others, function, full_graph):
    def change(x, value):
        changed = (x * 1.0).astype(own)
        return CHANGED_IN_PLACE[function](changed, value.astype(others))

    def run(call):
        tensors = paddle.to_tensor([1.5, -2.25, 0.75]), paddle.to_tensor([5.0, 6.0, 7.0])
        for each in tensors:
            each.stop_gradient = False
        result = call(*tensors)
        (result.astype("float32") * paddle.to_tensor([1.0, 2.0, 3.0])).sum().backward()
        grads = [0.0 if each.grad is None else each.grad.numpy() for each in tensors]
        return result, [result.astype("float32").numpy(), *grads]

    _, exact = run(lambda x, value: CHANGED_IN_PLACE[function](x * 1.0, value))
    call = change if full_graph is None else paddle.jit.to_static(change, full_graph=full_graph)
    with under(low=paddle.bfloat16):
        result, found = run(call)
    assert result.dtype == getattr(paddle, own)
    for mine, theirs in zip(found, exact, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_in_place_operations_on_low_tensors(low):
    x = paddle.rand([3, 3])
    x.stop_gradient = False
    with under(low=low):
        h = x @ x
        h.add_(h)
        h.scale_(0.5)
        F.relu_(h)
        h += x
        h[0] = 1.0
    assert h.dtype in (low, paddle.float32)
    h.astype("float32").sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize(
    "fill", ["uniform_", "normal_", "exponential_", "bernoulli_", "log_normal_"]
)
def test_low_tensors_are_filled_with_random_numbers(low, fill):
    paddle.seed(1)
    expected = getattr(paddle.zeros([3, 3]), fill)()
    paddle.seed(1)
    with under(low=low):
        h = paddle.rand([3, 3]) @ paddle.zeros([3, 3])
        paddle.seed(1)
        assert getattr(h, fill)() is h
    assert h.dtype == low
    # rounded before the exponential is taken, and after
    rounding = 2**-8 if fill == "log_normal_" else 0
    np.testing.assert_allclose(
        h.astype("float32").numpy(),
        expected.astype(low).astype("float32").numpy(),
        rtol=4 * rounding,
        atol=rounding,
    )


def test_views_share_memory(low):
    x = paddle.zeros([4, 4]).astype(low)
    with under(low=low):
        view = x.reshape([16])
        x.fill_(1.0)
    assert float(view.astype("float32").sum()) == 16.0


def test_what_states_its_dtype_has_it(low):
    with under("O3", low):
        assert paddle.rand([3]).dtype == paddle.float32
        assert paddle.rand([3]).astype("float32").dtype == paddle.float32
        assert paddle.rand([3]).sum(dtype="float32").dtype == paddle.float32


def test_lists_take_paddles_own_objects(low):
    x = paddle.rand([2, 4])
    linear = paddle.nn.Linear(4, 4)
    for name in (paddle.nn.Linear, F.linear, "paddle.nn.functional.linear", "linear_v2"):
        with under(low=low, deny=[name]):
            assert linear(x).dtype == paddle.float32
    with under(low=low, allow=[F.softmax, paddle.Tensor.exp]):
        assert F.softmax(x).dtype == low
        assert paddle.exp(x).dtype == low
    with under(low=low, allow="norm"):
        assert paddle.norm(x).dtype == low
    with under(low=low, allow="linalg_norm"):
        assert paddle.linalg.norm(x).dtype == low


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_result_has_the_dtype_that_the_call_names(level, dtype):
    low = paddle.full([64, 64], 32.0).astype(dtype)
    with unamp.autocast(level=level, dtype=dtype):
        for result in (paddle.sum(low, dtype="float32"), low.sum(dtype="float32")):
            assert result.dtype == paddle.float32
            assert float(result) == 131072.0  # float16 cannot hold it
        assert paddle.sum(low[0], dtype=dtype).dtype == low.dtype


@pytest.mark.parametrize(
    ("level", "dtype"),
    [("O1", "bfloat16"), ("O1", "float32"), ("O2", "bfloat16"), ("O3", "float16")],
)
@pytest.mark.parametrize("how", ["eager", "full graph", "SOT"])
def test_low_running_statistics_take_their_update(level: Any, dtype: str, how: str) -> None:
    paddle.seed(0)
    exact = nn.Sequential(nn.Conv2D(3, 6, 3), nn.BatchNorm2D(6), nn.InstanceNorm2D(6))
    network = copy.deepcopy(exact).to(dtype="bfloat16")
    x = paddle.randn([4, 3, 6, 6])
    called = (
        network if how == "eager" else paddle.jit.to_static(network, full_graph=how == "full graph")
    )
    with unamp.autocast(dtype=dtype, level=level):
        out = called(x.astype("bfloat16"))
    np.testing.assert_allclose(out.astype("float32").numpy(), exact(x).numpy(), atol=0.08)
    for name in ("_mean", "_variance"):
        updated = getattr(network[1], name)
        assert updated.dtype == paddle.bfloat16
        np.testing.assert_allclose(
            updated.astype("float32").numpy(), getattr(exact[1], name).numpy(), atol=0.01
        )


@pytest.mark.parametrize(
    "rest", [{"level": "O2"}, {"level": "O3"}, {"deny": ["softmax", "sum", "full_like"]}]
)
@pytest.mark.parametrize(
    "named", ["float32", np.dtype("float32"), paddle.float32, "float16", paddle.float16], ids=str
)
def test_a_dtype_that_a_caller_names_is_the_results_by_position_and_by_name(named, rest):
    x = paddle.to_tensor([[1.0, 2.0]])
    with under(low=paddle.bfloat16, **rest):
        results = [paddle.sum(x, None, named), paddle.sum(x, dtype=named), x.sum(0, named)]
        results += [paddle.full_like(x, 1, named), paddle.full_like(x, 1, dtype=named)]
        if "32" in str(named):  # these have no other low dtype on Paddle's CPU
            results += [
                F.softmax(x, -1, named),
                F.softmax(x, dtype=named),
                paddle.prod(x, None, False, named),
            ]
    wanted = paddle.float32 if "32" in str(named) else paddle.float16
    assert [each.dtype for each in results] == [wanted] * len(results)
    if "32" in str(named):
        assert results[0].item() == 3.0
        # computed in float32, not widened after
        np.testing.assert_array_equal(results[5].numpy(), F.softmax(x).numpy())


@pytest.mark.parametrize("preset", ["unamp", "paddle"])
@pytest.mark.parametrize(
    "call",
    [
        lambda x, y: paddle.cdist(x, y),  # of more than 25 rows it multiplies
        # of many numbers it sorts
        lambda x, y: paddle.isin(x[:, 0], y.flatten()).astype("float32"),
        lambda x, y: paddle.linalg.vector_norm(x, 3.0, axis=1),
    ],
    ids=["cdist", "isin", "vector_norm"],
)
def test_what_a_function_computes_with_for_some_arguments_follows_its_rule(call, preset):
    x, y = paddle.rand([40, 30]) + 0.1, paddle.rand([30, 30]) + 0.1
    expected = call(x, y)
    with unamp.autocast(dtype="bfloat16", preset=preset):
        found = call(x, y)
    assert found.dtype == paddle.float32
    np.testing.assert_array_equal(found.numpy(), expected.numpy())


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize(
    "loss", ["kl_div", "smooth_l1_loss", "binary_cross_entropy_with_logits", "mse_loss", "l1_loss"]
)
def test_a_loss_is_float32_at_o2_however_it_is_reduced(loss, reduction):
    x, y = paddle.rand([8, 4]) + 0.1, paddle.rand([8, 4]) + 0.1
    function = getattr(paddle.nn.functional, loss)
    with unamp.autocast(dtype="bfloat16", level="O2"):
        found = function(x, y, reduction=reduction)
    assert found.dtype == paddle.float32
    np.testing.assert_array_equal(found.numpy(), function(x, y, reduction=reduction).numpy())


@pytest.mark.parametrize(
    "compare",
    [
        lambda a, b: paddle.allclose(a, b),
        lambda a, b: paddle.isclose(a, b),
        lambda a, b: paddle.equal_all(a, b),
        lambda a, b: paddle.searchsorted(a, b),
        lambda a, b: paddle.bucketize(b, a),
        lambda a, b: paddle.stack(paddle.broadcast_tensors([a, b[:1]])),
        lambda a, b: paddle.stack(paddle.meshgrid(a, b)),
    ],
)
@pytest.mark.parametrize("level", ["OD", "O1", "O2", "O3"])
def test_what_wants_one_dtype_takes_low_tensors_beside_float32(compare, level, low):
    numbers, others = paddle.arange(4.0), paddle.to_tensor([0.0, 1.0, 2.5, 3.0])
    known = compare(numbers, others).numpy()
    for pair in ((numbers.astype(low), others), (numbers, others.astype(low))):
        with under(level, low):
            np.testing.assert_array_equal(compare(*pair).astype(known.dtype).numpy(), known)


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("part", [1, slice(1, 3), (slice(None), 1), (..., None, 0)], ids=str)
def test_a_slice_of_a_low_tensor_is_a_view(part, level, low):
    known = paddle.zeros([4, 4])
    known[part][0] = 7.0
    with under(level, low):
        x = paddle.matmul(paddle.zeros([4, 4]), paddle.eye(4))
        x[part][0] = 7.0
        grown = x * 1.0
        grown[part].add_(paddle.ones([1]))
    assert x.dtype == grown.dtype == low
    known_grown = known.clone()
    known_grown[part].add_(paddle.ones([1]))
    np.testing.assert_array_equal(x.astype("float32").numpy(), known.numpy())
    np.testing.assert_array_equal(grown.astype("float32").numpy(), known_grown.numpy())


def _low_rank(name, matrix):
    # Forward alone: Paddle 3.3.1 crashes in the gradient of its `qr`, whose R nothing uses.
    paddle.seed(0)
    return getattr(paddle.linalg, name)(matrix, q=5)


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("name", ["pca_lowrank", "svd_lowrank"])
def test_a_matrix_is_decomposed_by_products_in_float32(name, level, low):
    matrix = paddle.rand([24, 8]) * 2.0 ** paddle.arange(8, dtype="float32")
    rounded = matrix.astype(low)
    exact, of_rounded = _low_rank(name, matrix), _low_rank(name, rounded.astype("float32"))
    with under(level=level, low=low):
        found, of_low = _low_rank(name, matrix), _low_rank(name, rounded)
    for this, that in zip((*found, *of_low), (*exact, *of_rounded), strict=True):
        assert this.dtype == paddle.float32
        assert paddle.equal_all(this, that)


def test_under_paddles_own_lists_a_matrix_is_decomposed_by_low_products(low):
    with under(preset="paddle", low=low):
        _, values, _ = _low_rank("svd_lowrank", paddle.rand([24, 8]))
    assert values.dtype == low


def test_where_a_region_is_switched_off_a_low_matrix_is_decomposed_as_it_is(low):
    with under(low=low), under("O0", low=low):
        _, values, _ = _low_rank("svd_lowrank", paddle.rand([24, 8]).astype(low))
    assert values.dtype == low
