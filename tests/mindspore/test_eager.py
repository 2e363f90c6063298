"""Operations of PyNative mode follow the region's policy."""

import threading
from types import FunctionType

import mindspore
import numpy as np
import pytest
from eager import *  # noqa: F403
from eager import under
from mindspore import Parameter, Tensor, mint, nn, ops, train
from mindspore.ops import matmul as bound_early
from unamp_mindspore import listing, patches
from unamp_mindspore.hooks import HOOKS
from unamp_mindspore.spellings import named, spelled

import unamp

F32 = mindspore.float32
LOW = {"float16": mindspore.float16, "bfloat16": mindspore.bfloat16}


def rand(*shape):
    return Tensor(np.random.uniform(0.1, 1, shape).astype(np.float32))


def test_the_same_operation_by_every_way_to_call_it(low):
    x, y = rand(4, 4), rand(4, 4)
    mul = ops.MatMul()
    with under(low=low):
        ways = [
            x @ y,
            x.matmul(y),
            ops.matmul(x, y),
            mint.matmul(x, y),
            ops.MatMul()(x, y),
            mul(x, y),
            ops.mm(x, y),
        ]
        ways += [
            x.mm(y),
            bound_early(x, y),
            ops.dense(x, y),
            mint.nn.functional.linear(x, y),
            nn.Dense(4, 4)(x),
        ]
        ways += [ops.bmm(x[None], y[None]), ops.BatchMatMul()(x[None], y[None]), nn.MatMul()(x, y)]
        assert {way.dtype for way in ways} == {low}
    with under("O1", low, allow="add", deny="matmul"):
        ways = [
            x + y,
            1.0 + y,
            x + 1.0,
            x.add(y),
            ops.add(x, y),
            mint.add(x, y),
            ops.Add()(x, y),
            ops.tensor_add(x, y),
        ]
        assert {way.dtype for way in ways} == {low}
        assert (x.astype(low) @ y).dtype == F32


LINE, IMAGE, VOLUME = (2, 4, 8), (2, 4, 8, 8), (1, 4, 4, 4, 4)
BIASED = {
    "Dense": (lambda: nn.Dense(8, 3), LINE),
    "Conv1d": (lambda: nn.Conv1d(4, 3, 3, has_bias=True), LINE),
    "Conv2d": (lambda: nn.Conv2d(4, 3, 3, has_bias=True), IMAGE),
    "Conv3d": (lambda: nn.Conv3d(4, 3, 3, has_bias=True), VOLUME),
    "Conv1dTranspose": (lambda: nn.Conv1dTranspose(4, 3, 3, has_bias=True), LINE),
    "Conv2dTranspose": (lambda: nn.Conv2dTranspose(4, 3, 3, has_bias=True), IMAGE),
    "Conv3dTranspose": (lambda: nn.Conv3dTranspose(4, 3, 3, has_bias=True), VOLUME),
    "mint.Linear": (lambda: mint.nn.Linear(8, 3), LINE),
}


@pytest.mark.parametrize("name", list(BIASED))
def test_a_bias_belongs_to_its_operation(low, name):
    make, shape = BIASED[name]
    layer = make()
    with unamp.trace() as trace, under(low=low):
        assert layer(rand(*shape)).dtype == low
    assert [(r.rule, r.emulated) for r in trace.records] == [(unamp.Rule.LOW, True)]


def test_norms_keep_parameters_and_statistics(low):
    x = rand(6, 4, 5, 5)
    for norm in (nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.LayerNorm((5,))):
        norm.set_train()
        with under("O3", low):
            assert norm(x).dtype == low
        assert {p.dtype for p in norm.get_parameters()} == {F32}
        if isinstance(norm, nn.BatchNorm2d):
            assert np.abs(norm.moving_mean.asnumpy()).max() > 0
        with under(
            "O2", low, preset="mindspore" if not isinstance(norm, nn.GroupNorm) else "unamp"
        ):
            assert norm(x.astype(low)).dtype == F32


@pytest.mark.parametrize("compiled", [False, True], ids=["PyNative", "graph"])
def test_the_root_of_a_mean_square_is_a_loss(low, compiled):
    x, y, loss = rand(2, 3) + 1000, rand(2, 3), nn.RMSELoss()
    with under("O2", low):
        found = (mindspore.jit(loss.construct) if compiled else loss)(x, y)
    assert found.dtype == F32
    np.testing.assert_array_equal(found.asnumpy(), loss(x, y).asnumpy())


def with_low_norms(low):
    """Return a network of norms, and the same network with low parameters."""
    exact, network = (
        nn.SequentialCell(nn.BatchNorm2d(3), nn.LayerNorm((6,))).set_train() for _ in range(2)
    )
    for parameter in network.get_parameters():
        parameter.set_dtype(low)
    return exact, network


def assert_updated(network, exact, low):
    """Check that the low statistics of a network's first norm agree with the float32 ones."""
    for name in ("moving_mean", "moving_variance"):
        updated, expected = getattr(network[0], name), getattr(exact[0], name).asnumpy()
        assert updated.dtype == low
        np.testing.assert_allclose(updated.astype(F32).asnumpy(), expected, rtol=2**-7)


@pytest.mark.parametrize(
    ("level", "dtype"), [("O1", ""), ("O1", "float32"), ("O2", ""), ("O3", ""), ("OD", "")]
)
@pytest.mark.parametrize("compiled", [False, True], ids=["PyNative", "graph"])
def test_low_running_statistics_take_their_update(low, level, dtype, compiled):
    x = rand(4, 3, 6, 6)
    exact, network = with_low_norms(low)
    if compiled and low == mindspore.bfloat16:
        with (
            under(level, dtype or low),
            pytest.raises(unamp.NotExpressible, match="running statistics in bfloat16"),
        ):
            mindspore.jit(network.construct)(x.astype(low))
        return
    with under(level, dtype or low):
        out = (mindspore.jit(network.construct) if compiled else network)(x.astype(low))
    np.testing.assert_allclose(out.astype(F32).asnumpy(), exact(x).asnumpy(), atol=0.05)
    assert_updated(network, exact, low)


@pytest.mark.parametrize(
    ("low", "compiled"), [("float16", False), ("bfloat16", False), ("float16", True)]
)
def test_low_norms_in_training(low, compiled):
    low, x = LOW[low], rand(4, 3, 6, 6)
    exact, network = with_low_norms(low)

    def loss(x):
        return network(x).astype(F32).square().mean()

    step = mindspore.value_and_grad(loss, None, network.trainable_params())
    with under("O1", low):
        _, gradients = (mindspore.jit(step) if compiled else step)(x.astype(low))
    exact(x)
    assert_updated(network, exact, low)
    assert {gradient.dtype for gradient in gradients} == {low}


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("compiled", [False, True], ids=["PyNative", "graph"])
def test_a_function_updates_low_running_statistics(low, level, training, compiled):
    x = rand(4, 3, 6, 6)
    exact, found = (
        [mindspore.Parameter(Tensor(np.full(3, n, np.float32))) for n in (0.0, 1.0, 1.0, 0.0)]
        for _ in range(2)
    )
    for parameter in found:
        parameter.set_dtype(low)

    def norm(x):
        return ops.batch_norm(x, *found, training=training)

    if compiled and training and low == mindspore.bfloat16:
        with (
            under(level, low),
            pytest.raises(TypeError, match=r"Select CPU operator\[Assign\] fail"),
        ):
            mindspore.jit(norm)(x.astype(low))
        return
    with under(level, low):
        out = (mindspore.jit(norm) if compiled else norm)(x.astype(low))
    np.testing.assert_allclose(
        out.astype(F32).asnumpy(), ops.batch_norm(x, *exact, training=training).asnumpy(), atol=0.05
    )
    for updated, expected in zip(found[:2], exact[:2], strict=True):
        assert updated.dtype == low
        np.testing.assert_allclose(updated.astype(F32).asnumpy(), expected.asnumpy(), rtol=2**-7)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_are_one_operation(low, kind):
    layer = getattr(nn, kind)(4, 5, num_layers=2, bidirectional=True)
    with unamp.trace() as trace, under(low=low):
        assert layer(rand(3, 2, 4))[0].dtype == low
    assert [r.op for r in trace.records] == [kind.lower()]


def test_a_layers_weights_are_rounded(low):
    layer, x = nn.LSTM(4, 5), rand(3, 2, 4)
    with under(low=low):
        found = layer(x)[0]
    for parameter in layer.get_parameters():
        parameter.set_data(parameter.astype(low).astype(F32))
    expected = layer(x.astype(low).astype(F32))[0].astype(low)
    np.testing.assert_array_equal(found.astype(F32).asnumpy(), expected.astype(F32).asnumpy())


def test_cells_and_attention(low):
    x = rand(2, 3, 8)
    with under(low=low):
        assert nn.LSTMCell(8, 5)(x[:, 0], (rand(2, 5), rand(2, 5)))[0].dtype == low
        assert nn.GRUCell(8, 5)(x[:, 0], rand(2, 5)).dtype == low
        assert nn.MultiheadAttention(8, 2)(x, x, x)[0].dtype == low
        assert nn.TransformerEncoderLayer(8, 2, 16)(x).dtype == F32  # it ends in a layer norm
    with under(low=low, deny="multi_head_attention"):
        assert nn.MultiheadAttention(8, 2)(x, x, x)[0].dtype == F32


INDICES = {
    "int": 0,
    "slice": (slice(1, None), 0),
    "ellipsis": (..., 1),
    "list": [0, 1],
    "tensor": Tensor([0], mindspore.int32),
    "mask": Tensor(np.arange(12).reshape(3, 4) % 2 == 0),
}


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("index", list(INDICES))
def test_items_are_set_in_the_dtype_of_their_tensor(low, level, index):
    numbers = np.random.uniform(-1, 1, (3, 4)).astype(np.float32)
    place = INDICES[index]
    for dtype in (F32, low):
        with under(level, low):
            x = Tensor(numbers).astype(dtype)
            x[place] = 0.3
        expected = Tensor(numbers).astype(dtype).astype(F32).asnumpy()
        expected[place.asnumpy() if isinstance(place, Tensor) else place] = (
            Tensor(0.3, F32).astype(dtype).astype(F32).asnumpy()
        )
        assert x.dtype == dtype
        np.testing.assert_array_equal(x.astype(F32).asnumpy(), expected)


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_assigned_values_have_the_dtype_of_their_parameter(low, level):
    weight, halves = Parameter(rand(3, 4), name="weight"), rand(3, 4).astype(low)
    expected = (weight * 0.5).astype(low).astype(F32).asnumpy()
    with under(level, low):
        weight.assign_value(weight * 0.5)
        assert weight.dtype == F32
        # A low parameter takes over what it is given, as without a region.
        halves.assign_value(Tensor(expected))
        assert halves.dtype == F32
        # So does every tensor of a thread without a region.
        elsewhere = Tensor(expected)
        given = Tensor(expected.astype(np.float16))
        other = threading.Thread(target=elsewhere.assign_value, args=(given,))
        other.start()
        other.join()
        assert elsewhere.dtype == mindspore.float16
    np.testing.assert_array_equal(weight.asnumpy(), expected)


@pytest.mark.parametrize("run", [lambda function: function, mindspore.jit], ids=["eager", "graph"])
@pytest.mark.parametrize("level", ["O2", "O3"])
def test_a_copy_is_the_tensor_again(low, level, run):
    def copy(tensor):
        return tensor.copy()

    x = rand(3, 4)
    with under(level, low):
        copied = run(copy)(x)
    assert copied.dtype == F32
    np.testing.assert_array_equal(copied.asnumpy(), x.asnumpy())


def test_in_place_operations_on_low_tensors(low):
    x = rand(3, 3)
    with under(low=low):
        h = x @ x
        expected = (h + h).astype(F32).asnumpy()
        same = h.add_(h)
        assert same is h or same.dtype == low
        np.testing.assert_array_equal(h.astype(F32).asnumpy(), expected)
        h *= 0.5
        assert h.dtype == low


def test_what_states_its_dtype_has_it(low):
    with under("O3", low):
        assert rand(3).astype(F32).dtype == F32
        assert ops.zeros((3,), F32).dtype == F32


def test_lists_take_mindspores_own_objects(low):
    x, dense = rand(2, 4), nn.Dense(4, 4)
    for name in (nn.Dense, ops.dense, "mindspore.nn.Dense", "nn.Dense"):
        with under(low=low, deny=[name]):
            assert dense(x).dtype == F32
    for name in (ops.Softmax, ops.Softmax(), ops.softmax, nn.Softmax, "Softmax"):
        with under(low=low, allow=[name]):
            assert ops.softmax(x).dtype == low
    with under(low=low, allow=[Tensor.exp, mint.tanh]):
        assert ops.exp(x).dtype == low
        assert x.tanh().dtype == low


def test_a_kernels_error_is_raised_inside_the_region_that_caused_it():
    x = rand(3, 3)
    with under():
        with pytest.raises((RuntimeError, ValueError, TypeError)):
            ops.cholesky(ops.zeros((3, 3)))
        assert (x @ x).dtype == mindspore.float16


def test_a_hook_that_is_missing_is_named(monkeypatch):
    monkeypatch.delattr(nn.Cell, "_run_grad_construct")
    with pytest.raises(
        unamp.FrameworkNotSupported,
        match=rf"mindspore {mindspore.__version__} has no mindspore.nn.Cell._run_grad_construct",
    ):
        HOOKS.probe()
    assert patches.installed.open == 0


@pytest.mark.parametrize("name", ["__add__", "matmul"])
def test_a_method_that_somebody_changes_inside_a_region_stays_changed(name):
    with under():
        setattr(Tensor, name, lambda self, other: "theirs")
    try:
        assert getattr(Tensor, name)(rand(2, 2), rand(2, 2)) == "theirs"
        assert (rand(2, 2) * rand(2, 2)).dtype == F32
    finally:
        delattr(Tensor, name)
    with under():
        assert (rand(2, 2) @ rand(2, 2)).dtype == LOW["float16"]
    assert (rand(2, 2) + rand(2, 2)).dtype == F32


def test_a_call_means_the_same_inside_a_region(low):
    x, y = rand(2, 3), rand(2, 3)
    calls = [
        lambda: ops.add(input=x, other=y), lambda: ops.softmax(x, axis=0),
        lambda: ops.softmax(input=x), lambda: ops.sum(x, dim=1), lambda: ops.Softmax(axis=0)(x),
        lambda: ops.logspace(x[0, 0], y[0, 0], steps=3), lambda: mint.sum(x, dim=0, keepdim=True),
        lambda: x**2, lambda: x[1:], lambda: ops.cat(tensors=(x, y), axis=1),
        lambda: ops.clip(x, 0.3, 0.5), lambda: nn.GELU()(x),
    ]  # fmt: skip
    expected = [call() for call in calls]
    for region in (under(low=low), under(enabled=False, low=low)):
        with region:
            found = [call() for call in calls]
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one.asnumpy(), other.asnumpy())
    with under(low=low), pytest.raises(TypeError, match="missing 1 required positional argument"):
        ops.softmax()


def test_low_tensors_are_found_wherever_they_are_in_a_call(low):
    x = rand(2, 3)
    with under(low=low):
        h = x.astype(low)
        assert ops.cat((x, h)).dtype == F32
        assert ops.cat([h, h]).dtype == low
        assert ops.add(x, other=h).dtype == F32
        norm, scale = nn.LayerNorm((3,)), mindspore.Parameter(x)
        for parameter in (scale, *norm.get_parameters()):
            parameter.set_dtype(low)
        assert (h * scale).dtype == low
        assert (x * scale).dtype == F32
        assert norm(x).dtype == F32


def test_a_dtype_that_a_caller_names_is_the_callers(low):
    x = rand(2, 3)
    with under("O1", low, allow="sum"):
        assert ops.sum(x).dtype == low
        assert ops.sum(x, dtype=F32).dtype == F32
        assert ops.sum(x, None, False, dtype=F32).dtype == F32
        assert mint.sum(x, dtype=F32).dtype == F32


def test_who_replaces_a_method_between_regions_keeps_it():
    with under():
        pass
    Tensor.matmul = lambda self, other: "theirs"
    try:
        with under():
            assert rand(2, 2).matmul(rand(2, 2)) == "theirs"
        assert rand(2, 2).matmul(rand(2, 2)) == "theirs"
    finally:
        del Tensor.matmul


def test_every_function_of_python_is_exchanged():
    exchanged = {code.function for code in listing.codes().values()}
    for path, op in spelled().items():
        value = named(path) if "." in path else None
        if isinstance(value, FunctionType) and not listing._left_alone(op):
            assert value in exchanged, path


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_result_has_the_dtype_that_the_call_names(level, dtype):
    low = ops.cast(ops.full((64, 64), 32.0), getattr(mindspore, dtype))
    with unamp.autocast(level=level, dtype=dtype):
        for add_up in (ops.sum, mindspore.mint.sum, mindspore.Tensor.sum):
            result = add_up(low, dtype=mindspore.float32)
            assert result.dtype == mindspore.float32
            assert float(result) == 131072.0  # float16 cannot hold it
            assert add_up(low[0], dtype=low.dtype).dtype == low.dtype
        assert ops.softmax(low, dtype=mindspore.float32).dtype == mindspore.float32


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_metrics_count_in_float32(low, level):
    squared, loss, accuracy = train.MSE(), train.Loss(), train.Accuracy()
    with under(level, low):
        far = ops.matmul(rand(2, 4), rand(4, 3)) * 0 + 512
        assert far.dtype == low
        twice, first, labels = far * 2, far[0, 0], Tensor([0, 1], mindspore.int32)
        for _ in range(130):  # more 512s than float16 can add up
            squared.update(far, twice)
            loss.update(first)
            accuracy.update(far, labels)
    # NumPy would compare in float16, where both are infinite.
    assert float(squared.eval()) == 3 * 512.0**2
    assert float(loss.eval()) == 512.0
    assert accuracy.eval() == 0.5
