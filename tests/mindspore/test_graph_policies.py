"""Policies in compiled graphs give PyNative mode's dtypes and numbers.

Both low dtypes and every level are tested.
"""

import mindspore
import numpy as np
import pytest
from elsewhere import python
from mindspore import Parameter, Tensor, mint, nn, ops

import unamp
from unamp import Policy, policy_region

F32, F16, BF16 = mindspore.float32, mindspore.float16, mindspore.bfloat16

#: Products of the numbers rounded to low (by a quarter of the last place) are exact in float32.
#: Products of the unrounded numbers differ from them.
A = Tensor(
    (np.random.default_rng(0).integers(32, 63, (4, 4)) / 64 + 2**-10 + 2**-13).astype(np.float32)
)


def values(found):
    found = found if isinstance(found, tuple) else (found,)
    return [(each.dtype, ops.cast(each, F32).asnumpy()) for each in found]


def assert_as_eager(function, policy, *inputs, rtol=1e-6):
    """Check a function's results: low ones to the bit, float32 ones within `rtol`."""
    with policy_region(policy):
        found, expected = values(mindspore.jit(function)(*inputs)), values(function(*inputs))
    for (dtype, numbers), (own, exact) in zip(found, expected, strict=True):
        assert dtype == own
        np.testing.assert_allclose(numbers, exact, rtol=rtol if dtype == F32 else 0)
    return [dtype for dtype, _ in found]


def operations(a, low):
    """Return results of operations, operators, methods and views.

    Their inputs are float32; some have a low input, too.
    """
    product = a @ a
    scaled = a * 2.0 + low
    scaled -= 0.5 * a
    part = product[1:, 0]
    return (
        product,
        ops.matmul(a, low),
        scaled,
        -low,
        low / low,
        ops.softmax(low, -1),
        low.sum(axis=0),
        product.reshape(2, 8).swapaxes(0, 1),
        product.T,
        part,
        ops.concat((low, a), 1),
        ops.concat((low, low), axis=0),
        ops.exp(low),
        ops.where(low > 0.7, low, a),
        ops.relu(low),
        ops.argmax(low),
        low.astype(F32),
    )


POLICIES = [
    Policy(),
    *(Policy(level, "bfloat16") for level in ("O1", "O2", "O3", "OD")),
    Policy("O2", widen_results=True),
    Policy(preset="tensorflow"),
    Policy(
        "O2", "bfloat16", promote=True, allow=("add", "softmax"), deny=("matmul", "group:reduction")
    ),
]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_every_result_is_that_of_pynative_mode(policy):
    assert_as_eager(
        operations, policy, A, A.astype(mindspore.float16 if policy.dtype == "float16" else BF16)
    )


def test_a_part_that_is_switched_off_computes_with_low_inputs():
    off = unamp.autocast(enabled=False)

    @off
    def part(a):
        return a @ a, a[0], ops.softmax(a) + a.T

    def whole(a):
        return part(ops.matmul(a, a))

    assert assert_as_eager(whole, Policy(dtype="bfloat16"), A) == [BF16] * 3


def test_both_low_dtypes_meet():
    def meet(a, b):
        return a + b, ops.matmul(a, b), ops.concat((a, b))

    for policy in (Policy(), Policy("O2", "bfloat16"), Policy(preset="tensorflow")):
        assert_as_eager(meet, policy, A.astype(F16), A.astype(BF16))


def test_numbers_that_no_rule_is_about_stay_as_they_are():
    def others(wide, whole):
        return ops.exp(wide), wide @ wide, whole + 1, whole[0] // 2, ops.concat((whole, whole))

    assert_as_eager(others, Policy("O3", "bfloat16"), A.astype(mindspore.float64), Tensor([[1, 2]]))


def test_a_dtype_that_is_named_is_that_of_the_result():
    def named(a):
        return (
            ops.sum(a, dtype=F32),
            a.sum(dtype=F32),
            mint.sum(a, dim=0, dtype=F32),
            ops.zeros_like(a, dtype=F16),
        )

    for policy in (Policy("OD", "bfloat16"), Policy("O2", "bfloat16")):
        with policy_region(policy):
            found = mindspore.jit(named)(A.astype(BF16))
        assert [each.dtype for each in found] == [F32, F32, F32, F16], policy


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(2, 4, 3, has_bias=True), nn.BatchNorm2d(4)
        self.blocks = nn.CellList(
            [nn.SequentialCell(nn.Dense(64, 64), nn.GELU(), nn.LayerNorm((64,))) for _ in range(2)]
        )
        self.scale = Parameter(Tensor(np.full(64, 0.5, np.float32)), name="scale")

    def construct(self, x):
        x = ops.relu(self.norm(self.convolution(x)))
        x = x.reshape(x.shape[0] * x.shape[1], -1)
        for block in self.blocks:
            x = x + block(x) * self.scale
        return ops.softmax(x, -1)


X = Tensor(np.random.default_rng(1).uniform(-1, 1, (2, 2, 8, 8)).astype(np.float32))


@pytest.mark.parametrize("policy", [Policy(), Policy("O2", "bfloat16")], ids=str)
def test_a_network_and_its_gradients(policy):
    network = Network().set_train()

    def loss(x):
        return (network(x).astype(F32) ** 2).mean()

    step = mindspore.value_and_grad(loss, None, network.trainable_params())
    exact = step(X)
    with policy_region(policy):
        compiled, eager = mindspore.jit(step)(X), step(X)
    # In a graph, a layer is several operations, and each rounds: the results differ by up to one
    # more rounding for each.
    unit = 2**-8 if policy.dtype == "bfloat16" else 2**-11
    (dtype, value), (own, exact_value) = *values(compiled[0]), *values(eager[0])
    assert dtype == own
    np.testing.assert_allclose(value, exact_value, rtol=16 * unit)
    errors = [float(ops.norm(a - b)) for a, b in zip(eager[1], exact[1], strict=True)]
    for one, other, error in zip(compiled[1], eager[1], errors, strict=True):
        assert one.dtype == F32
        assert float(ops.norm(one - other)) <= 4 * error + 1e-6
    assert any((one != other).any() for one, other in zip(compiled[1], exact[1], strict=True))
    assert network.norm.moving_mean.asnumpy().any()  # a graph updates statistics, too


@mindspore.jit_class
class Helper:
    def __init__(self, factor):
        self.factor = factor

    def product(self, a):
        return ops.matmul(a, a) * self.factor


helper = Helper(2)


class Base(nn.Cell):
    def construct(self, a):
        return mint.matmul(a, a)


class Derived(Base):
    def construct(self, a):
        return super().construct(a) + 1


derived = Derived()


def test_code_of_every_kind_follows_the_policy():
    def closed_over(a):
        def inner(b):
            return b @ b

        return (
            helper.product(a),
            derived(a),
            inner(a),
            ops.MatMul()(a, a),
            (lambda b: ops.matmul(b, b))(a),
        )

    for policy in (Policy(), Policy(dtype="bfloat16")):
        low = F16 if policy.dtype == "float16" else BF16
        assert assert_as_eager(closed_over, policy, A) == [low] * 5


def test_names_that_a_method_shares_are_no_methods():
    class Norms(nn.Cell):
        def __init__(self):
            super().__init__()
            self.norm, self.split = nn.LayerNorm((4,)), (1, 2)

        def sum(self, a):
            return a + 1

        def construct(self, a):
            count = 0
            for each in self.split:
                count += each * 2
            return (
                self.norm(a),
                self.sum(a),
                a * count,
                a[..., : self.split[-1]],
                "a b".split(" ")[0] == "a",
            )

    with policy_region(Policy(dtype="bfloat16")):
        found = mindspore.jit(Norms())(A)
    np.testing.assert_array_equal(found[2].asnumpy(), A.asnumpy() * 6)
    assert found[3].shape == (4, 2)
    assert found[4]


COLD = """
import sys
import unamp

low = unamp.autocast(dtype="bfloat16")

@low  # before MindSpore is imported
def product(x):
    return ops.matmul(x, x)

assert "mindspore" not in sys.modules
import mindspore
from mindspore import Tensor, ops
import numpy as np

assert "Loader" in type(mindspore.__spec__.loader).__name__ and type(mindspore.__loader__).__module__ != "unamp._on_import"

def calls(x):
    return product(x), ops.matmul(x, x)

x = Tensor(np.full((4, 4), 1 + 2.0**-9, np.float32))
found = mindspore.jit(calls)(x)
assert [each.dtype for each in found] == [mindspore.bfloat16, mindspore.float32], found
assert (ops.cast(found[0], mindspore.float32).asnumpy() == 4).all()
with low:
    assert mindspore.jit(calls)(x)[1].dtype == mindspore.bfloat16
"""  # noqa: E501


def test_the_first_graph_of_a_process(tmp_path):
    file = tmp_path / "cold.py"  # the compiler reads source, so the code must be in a file
    file.write_text(COLD)
    python(file)
