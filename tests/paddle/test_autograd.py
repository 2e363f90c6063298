"""Gradients have the dtypes of their forward pass, whatever region is open during backward."""

import numpy as np
import paddle
import pytest
from eager import under
from elsewhere import forked
from paddle.autograd import PyLayer

import unamp
from unamp import Policy, policy_region


def network():
    paddle.seed(1)
    return paddle.nn.Sequential(
        paddle.nn.Linear(6, 8),
        paddle.nn.ReLU(),
        paddle.nn.LayerNorm(8),
        paddle.nn.Linear(8, 3),
        paddle.nn.Tanh(),
    )


def gradients(net, *, inside, low, level="O1"):
    net.clear_gradients()
    x = paddle.to_tensor(np.linspace(-1, 1, 24, dtype="float32").reshape(4, 6))
    with under(level, low):
        loss = net(x).astype("float32").square().sum()
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    return [p.grad.numpy() for p in net.parameters()]


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_a_region_open_during_backward_changes_nothing(low, level):
    net = network()
    for a, b in zip(
        gradients(net, inside=True, low=low, level=level),
        gradients(net, inside=False, low=low, level=level),
        strict=True,
    ):
        assert a.dtype == np.float32
        np.testing.assert_array_equal(a, b)


def test_backward_twice_in_one_region(low):
    net, x = network(), paddle.rand([2, 6])
    with under(low=low):
        for _ in range(3):
            net(x).sum().backward()
    assert all(p.grad.dtype == paddle.float32 for p in net.parameters())


def test_a_cast_under_no_grad_is_not_used_under_grad(low):
    net, x = network(), paddle.rand([4, 6])
    with under(low=low):
        with paddle.no_grad():
            net(x)
        net(x).astype("float32").sum().backward()
    assert all(p.grad is not None for p in net.parameters())


def test_double_grad(low):
    x = paddle.to_tensor([[0.3, -0.7], [0.2, 0.9]], stop_gradient=False)
    with under(low=low):
        y = paddle.matmul(x, x).astype("float32").sum()
        (first,) = paddle.grad(y, x, create_graph=True)
        (second,) = paddle.grad((first * first).sum(), x)
    assert first.dtype == second.dtype == paddle.float32
    assert bool(paddle.isfinite(second).all())


def test_hooks_get_low_gradients_and_can_compute(low):
    x = paddle.rand([3, 3])
    x.stop_gradient = False
    seen = []
    with under(low=low):
        h = paddle.matmul(x, x)
        h.register_hook(lambda g: (seen.append(g.dtype), g + g)[1])
    h.astype("float32").sum().backward()
    doubled = x.grad.numpy()
    x.clear_gradient()
    with under(low=low):
        h = paddle.matmul(x, x)
    h.astype("float32").sum().backward()
    assert seen == [low]
    np.testing.assert_allclose(doubled, 2 * x.grad.numpy(), rtol=1e-2)


class Cubed(PyLayer):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensor()
        return grad * x * x * 3


def test_pylayers(low):
    x = paddle.rand([3, 3])
    x.stop_gradient = False
    with under(low=low):
        y = Cubed.apply(x @ x)
    assert y.dtype == low
    y.astype("float32").sum().backward()
    assert x.grad.dtype == paddle.float32
    assert bool(paddle.isfinite(x.grad).all())


class Affine(PyLayer):
    """A layer without a bias as users write it; it saves a low tensor and a parameter."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return paddle.matmul(x, weight)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensor()
        return paddle.matmul(grad, weight.t()), paddle.matmul(x.t(), grad)


@pytest.mark.parametrize("full_graph", [None, True, False], ids=["eager", "AST", "SOT"])
def test_the_backward_of_a_pylayer_mixes_low_and_float32(full_graph, low):
    def loss(x, weight):
        return (Affine.apply(paddle.matmul(x, x), weight) + weight).sum()

    x, weight = paddle.rand([3, 3]), paddle.rand([3, 3])
    x.stop_gradient = weight.stop_gradient = False
    loss(x, weight).backward()
    exact = [x.grad.numpy(), weight.grad.numpy()]
    x.clear_gradient()
    weight.clear_gradient()
    call = loss if full_graph is None else paddle.jit.to_static(loss, full_graph=full_graph)
    with under(low=low):
        result = call(x, weight)
    result.backward()
    for mine, theirs in zip((x.grad, weight.grad), exact, strict=True):
        assert mine.dtype == paddle.float32
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=0.03)


class Product(PyLayer):
    @staticmethod
    @unamp.custom_fwd
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    @unamp.custom_bwd
    def backward(ctx, grad):
        a, b = ctx.saved_tensor()
        return grad @ b.t(), a.t() @ grad


def test_custom_functions_run_backward_under_the_policy_of_forward(low):
    a, b = paddle.rand([3, 3]), paddle.rand([3, 3])
    a.stop_gradient = b.stop_gradient = False
    with under(low=low):
        y = Product.apply(a, b)
    assert y.dtype == low
    y.astype("float32").sum().backward()
    assert a.grad.dtype == paddle.float32


SPARSE = """
import numpy as np, paddle, unamp

def trained(sparse, level, dtype):
    paddle.seed(0)
    net = paddle.nn.Sequential(paddle.nn.Embedding(10, 4, sparse=sparse), paddle.nn.Linear(4, 1))
    optimizer, scaler = paddle.optimizer.SGD(0.1, parameters=net.parameters()), unamp.GradScaler(1024.0)
    for _ in range(3):
        with unamp.autocast(level=level, dtype=dtype):
            loss = net(paddle.to_tensor([[1, 2], [3, 1]])).astype("float32").mean()
        scaler.scale(loss).backward()
        assert net[0].weight.grad.is_selected_rows() is sparse
        assert scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad()
    return net[0].weight.numpy()

for level in ("O1", "O2"):
    for dtype in ("float16", "bfloat16"):
        low, exact = trained(True, level, dtype), trained(False, "O0", dtype)
        np.testing.assert_allclose(low, exact, atol=0.002)
        assert not np.array_equal(low, exact)
"""  # noqa: E501


def test_training_an_embedding_with_sparse_gradients():
    # In a process of its own: casting a sparse gradient can end the process.
    forked("paddle", SPARSE)


def clip_in_place(parameters):
    norm = paddle.nn.utils.clip_grad_norm_(parameters, 1.0)
    return [norm, *(parameter.grad for parameter in parameters)]


def clip_by_a_class(parameters):
    return [
        gradient
        for _, gradient in paddle.nn.ClipGradByGlobalNorm(1.0)(
            [(each, each.grad) for each in parameters]
        )
    ]


@pytest.mark.parametrize(
    "policy",
    [
        Policy("O2", "float16"),
        Policy("O3", "bfloat16"),
        Policy("O1", "float16", allow=["stack", "sum"]),
    ],
    ids=str,
)
@pytest.mark.parametrize("clip", [clip_in_place, clip_by_a_class])
def test_gradients_that_are_clipped_in_a_region_come_to_the_same_bits_as_outside(clip, policy):
    def clipped(policy):
        parameters = [paddle.create_parameter([size], "float32") for size in (1000, 3)]
        sum(
            (each * factor).sum() for each, factor in zip(parameters, (1e4, 1e-2), strict=True)
        ).backward()
        with policy_region(policy):
            return [each.numpy() for each in clip(parameters)]

    for found, known in zip(clipped(policy), clipped(Policy(enabled=False)), strict=True):
        np.testing.assert_array_equal(found, known, strict=True)


def jacobian_of_tensors(function, x):
    return paddle.autograd.jacobian(function(x), x)


def hessian_of_tensors(function, x):
    return paddle.autograd.hessian(function(x).sum(), x)


def jacobian_of_a_function(function, x):
    return paddle.incubate.autograd.Jacobian(function, x)


def hessian_of_a_function(function, x):
    return paddle.incubate.autograd.Hessian(lambda x: function(x).sum(), x)


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize(
    "matrix",
    [
        jacobian_of_tensors,
        hessian_of_tensors,
        jacobian_of_a_function,
        hessian_of_a_function,
    ],
)
def test_matrices_of_derivatives_are_the_same_as_outside(matrix, low, level):
    weight = paddle.to_tensor(np.linspace(-1, 1, 12, dtype="float32").reshape(3, 4))

    def found(inside):
        x = paddle.to_tensor([0.5, 0.25, -1.0], stop_gradient=False)

        def function(x):
            with under(level, low):
                return paddle.tanh(paddle.matmul(x, weight)).astype("float32")

        if not inside:
            return matrix(function, x)[:]
        with under(level, low):
            return matrix(function, x)[:]

    assert found(True).dtype == paddle.float32
    np.testing.assert_array_equal(found(True), found(False))


def by_positions(x, values):
    x[paddle.to_tensor([0, 2])] = values[:2]


def by_a_list(x, values):
    x[[0, 2]] = values[:2]


def by_a_mask(x, values):
    x[paddle.to_tensor([[True, False, True, False]] * 3)] = values.flatten()[:6]


def by_columns(x, values):
    x[:, paddle.to_tensor([0, 3])] = values[:, :2]


def by_a_slice(x, values):
    x[:2] = values[:2]


@pytest.mark.parametrize("full_graph", [None, True], ids=["eager", "AST"])
@pytest.mark.parametrize("written_low", [True, False])
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("write", [by_positions, by_a_list, by_a_mask, by_columns, by_a_slice])
def test_gradients_of_what_is_written_by_an_index(write, kept, written_low, low, full_graph):
    def found(policy):
        x, values = (
            paddle.to_tensor(
                np.arange(12.0, dtype="float32").reshape(3, 4) / 8, stop_gradient=False
            )
            for _ in range(2)
        )

        def function(x, values):
            factor = paddle.eye(4)
            product = paddle.matmul(x, factor)
            into = product * 1.0 if kept else paddle.zeros_like(product)
            write(into, paddle.matmul(values, factor) if written_low else values * 1.0)
            return into

        compiled = paddle.jit.to_static(function, full_graph=True) if full_graph else function
        with policy_region(policy):
            into = compiled(x, values)
        (into.astype("float32") * paddle.arange(12.0).reshape([3, 4])).sum().backward()
        return into, values.grad.numpy(), x.grad.numpy() if kept else None

    known, found_low = found(Policy(enabled=False)), found(Policy("O1", low))
    assert found_low[0].dtype == low
    np.testing.assert_array_equal(found_low[0].astype("float32").numpy(), known[0].numpy())
    np.testing.assert_array_equal(found_low[1], known[1])
    if kept:
        np.testing.assert_array_equal(found_low[2], known[2])
