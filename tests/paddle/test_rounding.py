"""Low numbers on the CPU are rounded as in IEEE 754, forward and backward, in any memory."""

import ml_dtypes
import numpy as np
import paddle
import pytest
from unamp_paddle import casting

from unamp import Policy, policy_region

F = paddle.nn.functional
F32 = paddle.float32
NUMPY = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
#: The number of runs that must give the same bits: a network's operations are computed in float32
#: from the rounded numbers.
RUNS = 40


@pytest.fixture(params=list(NUMPY))
def low(request):
    return request.param


def nearest(numbers, low):
    """Return float32 numbers as NumPy rounds them to a low dtype."""
    with np.errstate(all="ignore"):
        return numbers.astype(NUMPY[low])


def same(found, expected):
    """Return whether two arrays of one dtype are the same to the bit; any NaN equals any other."""
    bits = f"u{expected.dtype.itemsize}"
    wide = expected.astype(np.float32)
    equal = found.view(bits) == expected.view(bits)
    return bool(
        (equal | (np.isnan(wide) & np.isnan(found.view(expected.dtype).astype(np.float32)))).all()
    )


def of_one_exponent(exponent):
    """Return float32 numbers of both signs, with ties and their neighbours."""
    ties = np.arange(0, 1 << 23, 1 << 12)
    mantissas = np.concatenate(
        [np.arange(0, 1 << 23, 211), ties, ties + 1, (ties - 1) % (1 << 23)]
    ).astype(np.uint32)
    return (
        (mantissas | np.uint32(exponent << 23))[None] | np.array([[0], [1 << 31]], np.uint32)
    ).view(np.float32)


@pytest.mark.parametrize(
    "exponents", [range(start, start + 16) for start in range(0, 256, 16)], ids=str
)
def test_all_kinds_of_numbers_are_rounded_to_nearest_and_ties_to_even(exponents, low):
    for exponent in exponents:
        numbers = of_one_exponent(exponent)
        expected, dtype = nearest(numbers, low), getattr(paddle, low)
        assert same(casting.cast(paddle.to_tensor(numbers), dtype).numpy(), expected), exponent
        assert same(
            casting.rounded(paddle.to_tensor(numbers), dtype).numpy(), expected.astype(np.float32)
        ), exponent


def test_every_low_number_is_itself_in_float32(low):
    bits = np.arange(1 << 16, dtype=np.uint16)
    for stop_gradient in (True, False):
        tensor = paddle.to_tensor(bits).view(getattr(paddle, low))
        tensor.stop_gradient = stop_gradient
        assert same(casting.widen(tensor).numpy(), bits.view(NUMPY[low]).astype(np.float32))


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_of_all_sizes_are_rounded_to_nearest(low, compiled):
    def product(x, by):
        with policy_region(Policy("O3", low)):
            return (x * paddle.ones_like(x)).astype("float32") * by

    if compiled:
        product = paddle.jit.to_static(product, full_graph=True)
    sizes = np.concatenate([of_one_exponent(exponent)[0, ::97] for exponent in range(1, 255)])
    x, by = paddle.ones([len(sizes)]), paddle.to_tensor(sizes)
    x.stop_gradient = False
    product(x, by).sum().backward()
    assert same(x.grad.numpy(), nearest(sizes, low).astype(np.float32))


def test_rounding_has_a_second_derivative(low):
    x = paddle.full([16, 16], 0.01)
    x.stop_gradient = False
    with policy_region(Policy("O1", low)):
        y = paddle.matmul(x, x).astype("float32").square().sum()
        (first,) = paddle.grad(y, x, create_graph=True)
        (second,) = paddle.grad(first.sum(), x)
    # Where all numbers are x, y = n^2 (n x^2)^2. The elements of its gradient add up to 4 n^4 x^3,
    # and each changes by 12 n^2 x^2.
    np.testing.assert_allclose(float(first.sum()), 4 * 16**4 * 1e-6, rtol=2e-2)
    np.testing.assert_allclose(float(second.mean()), 12 * 16**2 * 1e-4, rtol=2e-2)


# --- memory that is used again --------------------------------------------------------------------


def rearranged(linear, x):
    y = linear(x).reshape([2, 256, 8, 16]).transpose([0, 2, 1, 3])
    y = y.reshape([2, 8, 4096]).transpose([0, 2, 1])
    return linear(y.reshape([2, 256, 128]))


def test_numbers_are_those_of_the_tensor_and_not_of_one_that_had_its_memory(low):
    linear, x = paddle.nn.Linear(128, 128), paddle.rand([2, 256, 128])
    exact = rearranged(linear, x)
    unit = float(ml_dtypes.finfo(NUMPY[low]).eps) / 2
    for _ in range(RUNS):
        with policy_region(Policy("O1", low)):
            found = rearranged(linear, x).astype("float32")
        # Two linear layers round their inputs, weights, biases and results: eight times at most.
        assert float((found - exact).norm() / exact.norm()) < 8 * unit


class Block(paddle.nn.Layer):
    """Convolutions around a transformer that attends over patches, as in MobileViT."""

    def __init__(self):
        super().__init__()
        self.before = paddle.nn.Conv2D(8, 32, 3, padding=1)
        self.attention = paddle.nn.TransformerEncoderLayer(
            32, 4, 64, dropout=0.0, activation="silu"
        )
        self.after = paddle.nn.Conv2D(32, 8, 1)

    def forward(self, x):
        n, size = x.shape[0], x.shape[2]
        y = (
            F.silu(self.before(x))
            .reshape([n * 32 * size // 2, 2, size // 2, 2])
            .transpose([0, 2, 1, 3])
        )
        y = (
            y.reshape([n, 32, size * size // 4, 4])
            .transpose([0, 3, 2, 1])
            .reshape([n * 4, size * size // 4, 32])
        )
        y = self.attention(y).reshape([n, 4, size * size // 4, 32]).transpose([0, 3, 2, 1])
        y = (
            y.reshape([n * 32 * size // 2, size // 2, 2, 2])
            .transpose([0, 2, 1, 3])
            .reshape([n, 32, size, size])
        )
        return x + self.after(y)


def gradients(block, x, policy):
    block.clear_gradients()
    with policy_region(policy):
        loss = block(x).astype("float32").square().mean()
    loss.backward()
    return np.concatenate([parameter.grad.numpy().ravel() for parameter in block.parameters()])


@pytest.mark.parametrize("level", ["O1", "O3"])
def test_gradients_are_the_same_in_every_step(low, level):
    block, x = Block(), paddle.rand([2, 8, 16, 16])
    exact = gradients(block, x, Policy("O0"))
    first = gradients(block, x, Policy(level, low))
    assert exact @ first / (np.linalg.norm(exact) * np.linalg.norm(first)) > 0.999
    for _ in range(RUNS // 4):
        assert np.array_equal(gradients(block, x, Policy(level, low)), first)


# --- step by step ---------------------------------------------------------------------------------


def step_by_step(low):
    """Return a function that emulates an operation on low arrays.

    It computes in float32, and NumPy rounds the result.
    """

    def run(operation, *arrays):
        exact = operation(*(paddle.to_tensor(array.astype(np.float32)) for array in arrays))
        return nearest(exact.numpy(), low)

    return run


#: Operations on the result so far and another square matrix.
OPERATIONS = {
    "matmul": lambda h, other: h @ other,
    "add": lambda h, other: h + other,
    "mul": lambda h, other: paddle.multiply(h, other),
    "relu": lambda h, other: F.relu(h),
    "softmax": lambda h, other: F.softmax(h),
    "transposed": lambda h, other: h.t(),
    "reshaped": lambda h, other: h.reshape([8, 8, 64]).transpose([1, 0, 2]).reshape([64, 64]),
    "sliced": lambda h, other: paddle.concat([h[32:], h[:32]]),
    "exp": lambda h, other: paddle.exp(-h.abs()),
    "maximum": lambda h, other: paddle.maximum(h, other),
}


@pytest.mark.parametrize("seed", range(12))
def test_a_program_is_what_its_steps_are(seed, low):
    generator = np.random.default_rng(seed)
    names = generator.choice(list(OPERATIONS), 25)
    run = step_by_step(low)
    start, *others = generator.normal(size=(len(names) + 1, 64, 64)).astype(np.float32) / 8
    expected = nearest(start, low)
    found = paddle.to_tensor(start)
    with policy_region(Policy("O3", low)):
        for name, other in zip(names, others, strict=True):
            found = OPERATIONS[name](found, paddle.to_tensor(other))
    for name, other in zip(names, others, strict=True):
        expected = run(OPERATIONS[name], expected, nearest(other, low))
    assert same(casting.cast(found, getattr(paddle, low)).numpy(), expected)


def test_an_output_that_is_given_is_not_touched(low):
    x, out = paddle.ones([4, 4]), paddle.zeros([4, 4])
    with policy_region(Policy("O1", low)):
        paddle.matmul(x, x, out=out)
    assert out.dtype == F32
    assert np.all(out.numpy() == 4)


def test_a_change_in_place_is_seen_by_the_next_operation(low):
    with policy_region(Policy("O1", low)):
        h = paddle.rand([160, 160]) @ paddle.rand([160, 160])
        view = h.reshape([64, 400])
        h.fill_(2.0)
        assert float((view * view).astype("float32").mean()) == 4.0
        h[0] = 3.0
        assert float((h * h).astype("float32")[0].mean()) == 9.0


def test_a_gradient_that_a_hook_was_given_stays_as_it_was(low):
    x, seen = paddle.rand([160, 160]), []
    x.stop_gradient = False
    with policy_region(Policy("O3", low)):
        h = x @ x
        h.register_hook(lambda grad: seen.append((grad, grad.astype(F32).numpy())))
        loss = (F.relu(h) * h + h).astype("float32").sum()
    loss.backward()
    ((grad, before),) = seen
    assert np.array_equal(grad.astype(F32).numpy(), before)
