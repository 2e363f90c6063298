"""`paddle.jit.to_static` computes as eager mode does, under the policy of each call."""

import copy

import numpy as np
import paddle
import pytest
from paddle.nn import functional as F

import unamp
from unamp import Policy, policy_region

pytestmark = pytest.mark.parametrize("full_graph", [True, False], ids=["AST", "SOT"])
#: What a compiler reads differs by the level, and does not by the low dtype: each level has one.
LEVELS = [("O1", "bfloat16"), ("O2", "float16"), ("O3", "bfloat16")]


class Network(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.conv = paddle.nn.Conv2D(3, 4, 3)
        self.norm = paddle.nn.BatchNorm2D(4)
        self.linear = paddle.nn.Linear(4, 5)

    def forward(self, x):
        h = F.relu(self.norm(self.conv(x))).mean([2, 3])
        return F.softmax(self.linear(h) * 2.0 + 1)


class Inside(Network):
    def forward(self, x):
        with unamp.autocast(dtype="bfloat16"):
            h = self.conv(x)
            g = self.linear(h.mean([2, 3]))
        return h, g, x * 2.0


def pair(kind, full_graph):
    eager = kind()
    return eager, paddle.jit.to_static(copy.deepcopy(eager), full_graph=full_graph)


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
def test_a_program_for_each_policy(full_graph, low):
    eager, static = pair(Network, full_graph)
    eager.eval(), static.eval()
    x = paddle.rand([2, 3, 8, 8])
    policies = [
        Policy("O1", low),
        None,
        Policy("O2", low),
        Policy("O1", low, deny="conv2d"),
        Policy("O3", low),
        Policy("O1", low),
    ]
    for policy in policies * 2:
        with policy_region(policy or Policy(enabled=False)):
            expected, found = eager(x), static(x)
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(
            found.astype("float32").numpy(),
            expected.astype("float32").numpy(),
            rtol=1e-6,
            atol=1e-6,
        )


class Recurrent(paddle.nn.Layer):
    def __init__(self, kind):
        super().__init__()
        self.recurrent = getattr(paddle.nn, kind)(6, 5)

    def forward(self, x):
        out = self.recurrent(x)
        return paddle.concat(
            [out[0].flatten(), *(state.flatten() for state in paddle.utils.flatten(out[1]))]
        )


@pytest.mark.parametrize(
    "kind", ["LSTM", "GRU", "SimpleRNN", "LSTMCell", "GRUCell", "SimpleRNNCell"]
)
def test_recurrent_layers_round_their_parameters(full_graph, kind):
    eager, static = pair(lambda: Recurrent(kind), full_graph)
    x = paddle.rand([3, 6] if kind.endswith("Cell") else [3, 4, 6])
    for policy in (
        Policy("O1", "bfloat16"),
        Policy("O1", "float16"),
        Policy("O1", "bfloat16", deny=("lstm", "gru", "rnn")),
    ):
        with policy_region(policy):
            expected, found = eager(x), static(x)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(
            found.astype("float32").numpy(), expected.astype("float32").numpy()
        )


def _own_rnn(x, h, weights):
    """Call one of Paddle's C functions, as a user's code may.

    SOT simulates unamp's replacement of the function.
    """
    out, _, _ = paddle._C_ops.rnn(
        x,
        [h],
        list(weights),
        None,
        paddle.zeros([0], "uint8"),
        0.0,
        False,
        4,
        4,
        1,
        "RNN_TANH",
        0,
        False,
    )
    return out


@pytest.mark.parametrize("low", ["bfloat16", "float16"])
def test_c_functions(full_graph, low):
    x, h, weights = (
        paddle.rand([3, 2, 4]),
        paddle.zeros([1, 2, 4]),
        [paddle.rand(shape) for shape in ([4, 4], [4, 4], [4], [4])],
    )
    static = paddle.jit.to_static(_own_rnn, full_graph=full_graph)
    with unamp.autocast(dtype=low):
        wanted, got = _own_rnn(x, h, weights), static(x, h, weights)
    assert str(wanted.dtype) == f"paddle.{low}"
    assert got.dtype == wanted.dtype
    assert (got.astype("float32") == wanted.astype("float32")).all()


def test_region_inside(full_graph):
    eager, static = pair(Inside, full_graph)
    x = paddle.rand([2, 3, 8, 8])
    for _ in range(2):
        for expected, found in zip(eager(x), static(x), strict=True):
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(
                found.astype("float32").numpy(), expected.astype("float32").numpy(), rtol=1e-2
            )


def test_decorated_function_called_in_a_program(full_graph):
    static = paddle.jit.to_static(_calls_decorated, full_graph=full_graph)
    x = paddle.rand([4, 4])
    assert static(x).dtype == _calls_decorated(x).dtype == paddle.float16


@unamp.autocast(dtype="float16")
def _decorated(x):
    return paddle.matmul(x, x)


def _calls_decorated(x):
    return _decorated(x)


def library(x):
    with unamp.default_region(Policy(dtype="float16"), like=x):
        return x @ x


def test_a_librarys_default_gives_way_to_every_region(full_graph):
    x, static = paddle.rand([4, 4]), paddle.jit.to_static(library, full_graph=full_graph)
    for _ in range(2):
        assert static(x).dtype == paddle.float16
        for policy, expected in [
            (Policy(dtype="bfloat16"), paddle.bfloat16),
            (Policy(enabled=False), paddle.float32),
            (Policy("O0"), paddle.float32),
        ]:
            with policy_region(policy):
                assert static(x).dtype == expected
                with paddle.amp.auto_cast(False):
                    assert static(x).dtype == paddle.float32


class Product(paddle.autograd.PyLayer):
    """A product with a backward pass of its own, which returns low gradients."""

    @staticmethod
    @unamp.custom_fwd
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return paddle.matmul(a, b)

    @staticmethod
    @unamp.custom_bwd
    def backward(ctx, grad):
        a, b = ctx.saved_tensor()
        return paddle.matmul(grad, b.t()), paddle.matmul(a.t(), grad)


class WideProduct(Product):
    """The same product in float32, whatever the inputs."""

    @staticmethod
    @unamp.custom_fwd(cast_inputs="float32")
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return paddle.matmul(a, b)


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
@pytest.mark.parametrize("layer", [Product, WideProduct])
def test_a_custom_function_computes_and_differentiates_as_it_does_eagerly(layer, low, full_graph):
    def loss(a, b):
        return (layer.apply(a @ b, b) * 0.3).astype("float32").square().sum()

    found = []
    for function in (loss, paddle.jit.to_static(loss, full_graph=full_graph)):
        paddle.seed(3)
        a, b = paddle.rand([5, 5]), paddle.rand([5, 5])
        a.stop_gradient = b.stop_gradient = False
        with policy_region(Policy("O1", low)):
            result = function(a, b)
        result.backward()
        found.append([each.numpy() for each in (result, a.grad, b.grad)])
    for eager, compiled in zip(*found, strict=True):
        assert eager.dtype == compiled.dtype == np.float32
        np.testing.assert_array_equal(eager, compiled)


@pytest.mark.parametrize(("level", "low"), LEVELS)
def test_a_gradient_that_is_taken_inside(low, level, full_graph):
    weight = paddle.to_tensor(np.linspace(-1, 1, 12, dtype="float32").reshape(3, 4))
    x = paddle.to_tensor(np.linspace(-2, 2, 6, dtype="float32").reshape(2, 3), stop_gradient=False)

    def function(x):
        return paddle.grad(paddle.tanh(paddle.matmul(x, weight)).mean(), x)[0]

    with policy_region(Policy(level, low)):
        expected = function(x)
        found = paddle.jit.to_static(function, full_graph=full_graph)(x)
    assert found.dtype == expected.dtype == paddle.float32
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-2)


def carried_by_a_loop(x, weight):
    count, total = paddle.zeros([1], "int32"), paddle.zeros([2, 3])
    while count < 3:
        total = total * 0.5 + paddle.matmul(x, weight)
        count = count + 1
    return total


def replaced_in_a_loop(x, weight):
    count = paddle.zeros([1], "int32")
    while count < 3:
        x = paddle.matmul(x, weight)
        count = count + 1
    return x


def chosen_by_a_branch(x, weight):
    if x.sum() > -100.0:
        return paddle.matmul(x, weight)
    return x * 2.0


@pytest.mark.parametrize(("level", "low"), LEVELS)
@pytest.mark.parametrize("function", [carried_by_a_loop, replaced_in_a_loop, chosen_by_a_branch])
def test_loops_and_branches_on_a_tensor(function, low, level, full_graph):
    weight = paddle.to_tensor(np.linspace(-1, 1, 9, dtype="float32").reshape(3, 3))
    x = paddle.to_tensor(np.linspace(-2, 2, 6, dtype="float32").reshape(2, 3))
    with policy_region(Policy(level, low)):
        expected = function(x, weight)
        found = paddle.jit.to_static(function, full_graph=full_graph)(x, weight)
    if full_graph:
        # one branch is low; the other is float32 at O1
        low_branch = function is chosen_by_a_branch and level != "O1"
        assert found.dtype == getattr(paddle, low if low_branch else "float32")
    np.testing.assert_allclose(
        found.astype("float32").numpy(), expected.astype("float32").numpy(), rtol=2e-2, atol=1e-3
    )
