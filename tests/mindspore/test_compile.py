"""Each policy has a compiled graph of its own; the policy in force at the call decides."""

import contextlib
import functools
import sys

import mindspore
import numpy as np
import pytest
from elsewhere import ended
from mindspore import Tensor, nn, ops
from unamp_mindspore import compiling

import unamp
from unamp import Policy, autocast, policy_region
from unamp.dialects.torch import amp as torch_amp

jit_context = sys.modules[compiling.jit_context.__module__]  # the module depends on the version

F32, F16, BF16 = mindspore.float32, mindspore.float16, mindspore.bfloat16


def rand(*shape):
    return Tensor(np.random.uniform(0.1, 1, shape).astype(np.float32))


@mindspore.jit
def compute(a, b):
    return ops.matmul(a, b), a + b, ops.softmax(a)


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, has_bias=True)
        self.norm = nn.BatchNorm2d(4)
        self.dense = nn.Dense(256, 7)

    def construct(self, x):
        return self.dense(ops.relu(self.norm(self.conv(x))).reshape(x.shape[0], -1))


def dtypes(policy, function, *inputs):
    if policy is None:
        found = function(*inputs)
    else:
        with policy_region(policy):
            found = function(*inputs)
    return [r.dtype for r in (found if isinstance(found, tuple) else (found,))]


POLICIES = [
    (None, [F32, F32, F32]),
    (Policy(), [F16, F32, F32]),
    (Policy(deny="matmul"), [F32, F32, F32]),
    (Policy(allow="add"), [F16, F16, F32]),
    (Policy("O2"), [F16, F16, F16]),
    (Policy("O3", deny="softmax"), [F16, F16, F32]),
    (Policy("OD"), [F16, F32, F32]),
    (Policy(enabled=False), [F32, F32, F32]),
]


def test_one_graph_for_each_policy_and_never_a_stale_one():
    a, b = rand(4, 4), rand(4, 4)
    for _ in range(2):
        for policy, expected in POLICIES:
            assert dtypes(policy, compute, a, b) == expected, policy


def test_a_jitted_function_that_was_first_called_in_a_region():
    @mindspore.jit
    def product(a, b):
        return ops.matmul(a, b)

    a, b = rand(4, 4), rand(4, 4)
    assert [dtypes(policy, product, a, b)[0] for policy in (Policy(), None, Policy())] == [
        F16,
        F32,
        F16,
    ]


def test_cells_in_graph_mode(graph_mode):
    network, x = Network(), rand(2, 3, 8, 8)
    policies = (
        (None, F32),
        (Policy(), F16),
        (Policy(deny=("linear", "matmul")), F32),
        (Policy("O2"), F16),
        (Policy(dtype="bfloat16"), BF16),
        (Policy("O2", "bfloat16"), BF16),
        (Policy("O3", widen_results=True), F32),
    )
    for _ in range(2):
        for policy, expected in policies:
            assert dtypes(policy, network, x) == [expected], policy
    assert not hasattr(network, "amp_strategy")
    assert {p.dtype for p in network.get_parameters()} == {F32}


@pytest.mark.parametrize("make", [lambda: nn.Dense(4, 4), lambda: nn.LayerNorm((4,)), nn.Softmax])
def test_a_layer_by_itself_in_graph_mode(graph_mode, make):
    layer, x = make(), rand(2, 4)
    policies = [(Policy("O3"), F16), (Policy(deny="*"), F32), (Policy("O3", "bfloat16"), BF16)]
    for policy, expected in (*policies, *policies):
        assert dtypes(policy, layer, x) == [expected], policy


#: From Python 3.12 on, MindSpore itself captures no bytecode.
BYTECODE = sys.version_info < (3, 12)


def test_a_function_whose_bytecode_is_captured_runs_as_it_is_in_a_region():
    a, b = rand(4, 4), rand(4, 4)
    compiled = mindspore.jit(_plain_product, capture_mode="bytecode")
    if not BYTECODE:
        with (
            policy_region(Policy()),
            pytest.raises(Exception, match=r"does not support Python 3\.12"),
        ):
            compiled(a, b)
        return
    for _ in range(2):
        assert dtypes(Policy(dtype="bfloat16"), compiled, a, b) == [BF16]
        with policy_region(Policy()):
            assert dtypes(Policy(enabled=False), compiled, a, b) == [F32]
        np.testing.assert_array_equal(compiled(a, b).asnumpy(), _plain_product(a, b).asnumpy())


def _plain_product(a, b):
    return ops.matmul(a, b)


low = unamp.autocast(dtype="float16")


@low
def low_product(a, b):
    return ops.matmul(a, b)


def _statement(a, b):
    with unamp.autocast(dtype="float16"):
        return ops.matmul(a, b), ops.matmul(a, b)


def _call(a, b):
    with low:
        inside = _plain_product(a, b)
    return inside, _plain_product(a, b)


def _decorated(a, b):
    return low_product(a, b), ops.matmul(a, b)


CAPTURED = [
    (low_product, [F16]),
    (_statement, [F16, F16]),
    (_call, [F16, F32]),
    (_decorated, [F16, F32]),
]


@pytest.mark.parametrize(
    ("function", "expected"), CAPTURED, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_region_inside_a_function_whose_bytecode_is_captured(function, expected):
    compiled = mindspore.jit(function, capture_mode="bytecode")
    a, b = rand(4, 4), rand(4, 4)
    for _ in range(2):
        if BYTECODE:
            assert dtypes(None, compiled, a, b) == expected
        else:
            with pytest.raises(Exception, match=r"does not support Python 3\.12"):
                compiled(a, b)


def test_no_region_opens_while_a_graph_is_captured_from_a_trace():
    # The state of MindSpore inside a traced function. An error in a real one would leave MindSpore
    # tracing.
    jit_context.set_jit_context(jit_context.JitContext())
    try:
        with pytest.raises(unamp.NotExpressible, match="trace"), policy_region(Policy()):
            pass
    finally:
        jit_context.set_jit_context(None)
    assert unamp.current_policy() is None


# --- what a strategy of primitives does not know --------------------------------------------------


def losses(low, x):
    return ops.mse_loss(low, x), ops.matmul(x, x), ops.relu(low)


@pytest.mark.parametrize(
    ("policy", "rest"), [(Policy(), F16), (Policy("O2"), F16), (Policy(deny="*"), F32)], ids=str
)
def test_an_operation_of_several_primitives_follows_its_rule(policy, rest):
    a = rand(4, 4)
    low = a.astype(F16)
    with policy_region(policy):
        found, eager = mindspore.jit(losses)(low, a), losses(low, a)
    loss = found[0]
    assert [each.dtype for each in found] == [each.dtype for each in eager] == [F32, rest, rest]
    np.testing.assert_allclose(loss.asnumpy(), eager[0].asnumpy(), rtol=1e-6)


def test_an_operation_of_several_primitives_can_be_allowed():
    with policy_region(Policy(allow="mse_loss")):
        assert mindspore.jit(losses)(rand(4, 4), rand(4, 4))[0].dtype == F16


@mindspore.jit
def banned(x):
    return ops.binary_cross_entropy(x, x)


def test_what_a_policy_bans_raises_in_a_graph_too():
    x = rand(4, 4)
    for _ in range(2):
        with (
            policy_region(Policy(preset="torch-cuda")),
            pytest.raises(unamp.BannedOperation, match="binary_cross_entropy"),
        ):
            banned(x)
        assert banned(x).dtype == F32


partial_product = functools.partial(ops.matmul)


@functools.lru_cache
def cached_product(x):
    return ops.matmul(x, x)


def calls_partial(x):
    return partial_product(x, x)


def calls_cached(x):
    return cached_product(x)


@pytest.mark.parametrize("function", [calls_partial, calls_cached])
def test_what_python_would_run_when_the_graph_runs_is_refused_in_a_region(function):
    compiled, x = mindspore.jit(function), rand(4, 4)
    with (
        policy_region(Policy()),
        pytest.raises(unamp.NotExpressible, match="Python runs it when the graph runs"),
    ):
        compiled(x)
    assert compiled(x).dtype == F32


def batched_product(x, y):
    return ops.relu(x @ y)


def batched_softmax(x, y):
    return ops.softmax(ops.matmul(x, y))


@policy_region(Policy("O2", "bfloat16"))
def batched_by_itself(x, y):
    return ops.tanh(ops.matmul(x, y))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("function", [batched_product, batched_softmax, batched_by_itself])
def test_vmap_computes_what_the_function_computes_on_each_part(function, dtype):
    a, b = rand(5, 4, 4), rand(5, 4, 3)
    batched = ops.vmap(function)
    compiled = mindspore.jit(batched)
    with policy_region(Policy(dtype=dtype)):
        parts = [function(one, other) for one, other in zip(a, b, strict=True)]
        found = [batched(a, b), compiled(a, b)]
    for each in found:
        assert each.dtype == parts[0].dtype
    found += [batched(a, b)] if function is batched_by_itself else []
    for each in found:
        whole = each.astype(F32).asnumpy()
        known = np.stack([part.astype(F32).asnumpy() for part in parts])
        np.testing.assert_allclose(whole, known, rtol=2 ** (-10 if dtype == "float16" else -7))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_of_each_part_are_added_up_in_the_dtype_of_the_input(dtype):
    x, weight = rand(4, 3), rand(3, 3)

    def loss(x):
        return (ops.matmul(x, weight) * 2.0).sum() + ops.exp(x).sum()

    with policy_region(Policy("O2", dtype)):
        parts, whole = mindspore.vmap(mindspore.grad(loss))(x), mindspore.grad(loss)(x)
    assert parts.dtype == F32
    np.testing.assert_allclose(parts.asnumpy(), whole.asnumpy(), rtol=1e-6)


a_region = unamp.autocast(dtype="bfloat16")


def with_a_region_of_its_own(a, b):
    with unamp.autocast(dtype="bfloat16"):
        return ops.matmul(a, b)


def with_a_region_by_its_short_name(a, b):
    with autocast(dtype="bfloat16"):
        product = ops.matmul(a, b)
    return product + 1


def with_a_region_from_outside(a, b):
    with a_region:
        return ops.matmul(a, b)


def with_a_region_of_a_dialect(a, b):
    with torch_amp.autocast("cpu"):
        return ops.matmul(a, b)


@pytest.mark.parametrize(
    "function",
    [
        with_a_region_of_its_own,
        with_a_region_by_its_short_name,
        with_a_region_from_outside,
        with_a_region_of_a_dialect,
    ],
)
def test_a_region_inside_a_compiled_function_says_what_to_write_instead(function):
    compiled = mindspore.jit(function)
    for around in (contextlib.nullcontext(), unamp.autocast()):
        with around, pytest.raises(unamp.NotExpressible, match=r"decorate that \(@unamp.autocast"):
            compiled(rand(2, 2), rand(2, 2))
    # the compiler still works
    assert dtypes(Policy(), mindspore.jit(compute_alone), rand(2, 2), rand(2, 2)) == [F16]


def compute_alone(a, b):
    return ops.matmul(a, b)


def test_a_program_that_compiled_a_graph_in_a_region_ends_without_a_complaint(tmp_path):
    (tmp_path / "program.py").write_text(
        """
import mindspore, numpy, unamp
from mindspore import nn

class Net(nn.Cell):
    def construct(self, x):
        return nn.ReLU()(x)

net = Net()
with unamp.autocast(dtype="float16"):
    print(mindspore.jit(net)(mindspore.Tensor(numpy.ones((2, 2), "float32"))).dtype)
"""
    )
    done = ended(tmp_path / "program.py")
    assert (done.code, done.stdout.strip()) == (0, "Float32")
    assert "Exception ignored" not in done.stderr
