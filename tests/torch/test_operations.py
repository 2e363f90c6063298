"""Special cases among operations: other arguments, exact parts, missing low kernels."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from unamp_torch import plans

import unamp
from unamp import Policy, Rule, policy_region

F32, F16, BF16, F64 = torch.float32, torch.float16, torch.bfloat16, torch.float64
LOW = {"float16": F16, "bfloat16": BF16}

each_dtype = pytest.mark.parametrize("dtype", ["bfloat16", "float16"])


def mat(dtype: torch.dtype = F32) -> Tensor:
    return (torch.rand(4, 4) + 0.5).to(dtype)


# --- norms, biases --------------------------------------------------------------------------------

NORMS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "batch_norm": lambda: (nn.BatchNorm2d(4), torch.rand(2, 4, 3, 3)),
    "layer_norm": lambda: (nn.LayerNorm(4), torch.rand(3, 4)),
    "group_norm": lambda: (nn.GroupNorm(2, 4), torch.rand(2, 4, 3)),
    "instance_norm": lambda: (
        nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
        torch.rand(2, 4, 3, 3),
    ),
    "rms_norm": lambda: (nn.RMSNorm(4), torch.rand(3, 4)),
}


@each_dtype
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("op", NORMS)
def test_a_low_norm_keeps_its_parameters_and_statistics_in_float32(
    op: str, training: bool, dtype: str
) -> None:
    (layer, x), low = NORMS[op](), LOW[dtype]
    layer.train(training)
    for name, p in layer.named_parameters():
        # values that a cast to low would round away
        nn.init.constant_(p, 1.0 + 2**-12 if name == "weight" else 2**-12)
    buffers = {name: b.clone() for name, b in layer.named_buffers()}
    with unamp.autocast("cpu", dtype, allow=op):
        out = layer(x)
        out.float().sum().backward()
    assert out.dtype == low
    assert all(p.dtype == p.grad.dtype == F32 for p in layer.parameters())
    assert all(b.dtype == buffers[name].dtype for name, b in layer.named_buffers())
    for name, b in layer.named_buffers():
        if name != "num_batches_tracked":  # instance norm does not count
            assert training != torch.equal(b, buffers[name]), (
                f"{name} is updated in training, and in training only"
            )
    reference = copy.deepcopy(layer).double()
    for name, b in reference.named_buffers():
        b.copy_(buffers[name])
    exact = reference(x.to(low).double())
    assert torch.allclose(out.double(), exact, rtol=2**-7, atol=2**-6)


@each_dtype
@pytest.mark.parametrize("level", ["O2", "O3"])
def test_batch_norms_running_statistics_follow_the_low_activation(level: str, dtype: str) -> None:
    layer, x = nn.BatchNorm1d(4), torch.rand(16, 4)
    rounded = x.to(LOW[dtype]).float() if level == "O3" else x
    with unamp.autocast("cpu", dtype, level=level):
        layer(x)
        layer(x)
    reference = nn.BatchNorm1d(4)
    reference(rounded)
    reference(rounded)
    assert layer.num_batches_tracked == 2
    assert layer.running_mean.dtype == layer.running_var.dtype == F32
    assert torch.allclose(layer.running_mean, reference.running_mean, atol=1e-6)
    assert torch.allclose(layer.running_var, reference.running_var, atol=1e-6)


LAYERS: dict[str, Callable[[bool], tuple[nn.Module, Tensor]]] = {
    "linear": lambda bias: (nn.Linear(4, 4, bias=bias), torch.rand(3, 4)),
    "conv1d": lambda bias: (nn.Conv1d(4, 4, 3, bias=bias), torch.rand(2, 4, 8)),
    "conv2d": lambda bias: (nn.Conv2d(4, 4, 3, padding="same", bias=bias), torch.rand(2, 4, 8, 8)),
    "conv3d": lambda bias: (nn.Conv3d(4, 4, 3, bias=bias), torch.rand(1, 4, 5, 5, 5)),
    "conv_transpose1d": lambda bias: (nn.ConvTranspose1d(4, 4, 3, bias=bias), torch.rand(2, 4, 8)),
    "conv_transpose2d": lambda bias: (
        nn.ConvTranspose2d(4, 4, 3, bias=bias),
        torch.rand(2, 4, 8, 8),
    ),
    "conv_transpose3d": lambda bias: (
        nn.ConvTranspose3d(4, 4, 3, bias=bias),
        torch.rand(1, 4, 5, 5, 5),
    ),
}


@each_dtype
@pytest.mark.parametrize("preset", ["unamp", "mindspore", "paddle"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("op", LAYERS)
def test_linear_and_convolutions_include_their_bias(
    op: str, bias: bool, preset: str, dtype: str
) -> None:
    (layer, x), low = LAYERS[op](bias), LOW[dtype]
    with unamp.autocast("cpu", dtype, preset=preset, allow=op, deny="add"):
        out = layer(x)
    assert out.dtype == low
    assert torch.equal(out, copy.deepcopy(layer).to(low)(x.to(low)))
    with unamp.autocast("cpu", dtype, preset=preset, deny=op):
        assert torch.equal(layer(x.to(low)), layer(x.to(low).float()))


# --- calls that say a dtype themselves, scalars, shapes -------------------------------------------


@pytest.mark.parametrize("level", ["OD", "O1", "O2", "O3"])
@pytest.mark.parametrize("asked", [F32, F16, BF16, F64], ids=str)
def test_an_explicit_dtype_keeps_its_meaning(level: str, asked: torch.dtype) -> None:
    x = mat()
    calls: list[Callable[[Tensor], Tensor]] = [
        lambda t: F.softmax(t, 1, dtype=asked),
        lambda t: torch.softmax(t, 1, asked),
        lambda t: F.log_softmax(t, 1, dtype=asked),
        lambda t: t.sum(dtype=asked),
        lambda t: torch.sum(t, 1, dtype=asked),
        lambda t: t.mean(dtype=asked),
        lambda t: t.cumsum(0, dtype=asked),
        lambda t: torch.prod(t, 0, dtype=asked),
        lambda t: (
            torch.linalg.vector_norm(t.float(), dtype=asked) if asked in (F32, F64) else t.to(asked)
        ),
    ]
    for low in (F16, BF16):
        for call in calls:
            with unamp.autocast("cpu", low, level=level):
                result = call(x)
            assert result.dtype == asked
            assert torch.equal(result, call(x))


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_operations_that_join_tensors_take_the_widest(level: str) -> None:
    a, b = mat(), mat(BF16)
    index = torch.zeros(1, 4, dtype=torch.long)
    joins: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "cat": lambda x, y: torch.cat([x, y]),
        "stack": lambda x, y: torch.stack([x, y, y]),
        "hstack": lambda x, y: torch.hstack([x, y]),
        "vstack": lambda x, y: torch.vstack((x, y)),
        "where": lambda x, y: torch.where(x > 1, x, y),
        "index_put": lambda x, y: torch.index_put(x, (index[0],), y),
        "index_copy": lambda x, y: torch.index_copy(x, 0, torch.tensor([0, 1, 2, 3]), y),
        "scatter": lambda x, y: torch.scatter(x, 0, index, y),
        "masked_scatter": lambda x, y: torch.masked_scatter(
            x, torch.ones(4, 4, dtype=torch.bool), y
        ),
        "lerp": lambda x, y: torch.lerp(x, y, 0.5),
        "addcmul": lambda x, y: torch.addcmul(x, y, y),
        "dot": lambda x, y: torch.dot(x[0], y[0]),
        "cross": lambda x, y: torch.linalg.cross(x[:, :3], y[:, :3]),
        "atan2": torch.atan2,
        "add": torch.add,
        "grid_sample": lambda x, y: F.grid_sample(x[None, None], y.view(1, 4, 2, 2)),
    }
    other = mat(F16)
    for op, call in joins.items():
        with unamp.autocast("cpu", level=level, promote=True):
            for x, y in ((a, b), (b, a), (b, other), (other, a)):
                assert call(x, y).dtype == F32, (op, x.dtype, y.dtype)
                if (x.dtype, y.dtype) == (F32, BF16):
                    assert torch.equal(call(x, y), call(x.float(), y.float())), op
            assert call(b, b).dtype == BF16, op


@pytest.mark.parametrize(
    "policy",
    [Policy("O1", "bfloat16", allow=("add", "mul", "pow", "div", "sub")), Policy("O3", "bfloat16")],
    ids=repr,
)
def test_scalars(policy: Policy) -> None:
    x = mat()
    low = x.bfloat16()
    with policy_region(policy):
        pairs = [
            (x + 1, low + 1),
            (1 + x, 1 + low),
            (x * 2.5, low * 2.5),
            (x - 3, low - 3),
            (3 - x, 3 - low),
            (x**2, low**2),
            (2**x, 2**low),
            (torch.add(x, 1, alpha=2), torch.add(low, 1, alpha=2)),
            (x + torch.tensor(2.0), low + 2.0),
            (x * torch.tensor(2.0, dtype=F64), low * 2.0),
            (x + torch.tensor(2), low + 2),
        ]
        assert (torch.arange(3) + 1).dtype == torch.int64
        assert (torch.ones(2, dtype=F64) + 1).dtype == F64
    for n, (got, want) in enumerate(pairs):
        assert got.dtype == BF16, n
        assert torch.equal(got, want), n


@each_dtype
@pytest.mark.parametrize("level", ["OD", "O1", "O2", "O3"])
def test_zero_dimensional_and_empty_tensors(level: str, dtype: str) -> None:
    low = LOW[dtype]
    with unamp.autocast("cpu", dtype, level=level, allow="mul"):
        assert (torch.tensor(2.0) * torch.tensor(3.0)).dtype == low
        assert (torch.tensor(2.0) * torch.tensor(3.0)).item() == 6.0
        assert torch.matmul(torch.rand(3), torch.rand(3)).dtype == low
        assert torch.mm(torch.rand(0, 4), torch.rand(4, 2)).shape == (0, 2)
        assert torch.mm(torch.rand(0, 4), torch.rand(4, 2)).dtype == low
        assert (torch.rand(0) * torch.rand(0)).dtype == low
        assert F.linear(torch.rand(0, 4), torch.rand(2, 4), torch.rand(2)).shape == (0, 2)
        assert torch.cat([torch.rand(0), torch.rand(2)]).dtype == (
            low if level == "O3" or level == "O2" else F32
        )


def test_other_memory_layouts() -> None:
    x, w = torch.rand(6, 4).t(), torch.rand(8, 12)[::2, ::2]
    image = torch.rand(2, 4, 8, 8).contiguous(memory_format=torch.channels_last)
    kernel = torch.rand(4, 4, 3, 3)
    with unamp.autocast("cpu", allow="mul"):
        assert torch.equal(
            F.linear(x, w), F.linear(x.bfloat16().contiguous(), w.bfloat16().contiguous())
        )
        assert torch.equal(x * x, x.bfloat16() * x.bfloat16())
        out = F.conv2d(image, kernel)
    assert out.dtype == BF16
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(
        out, F.conv2d(image.contiguous().bfloat16(), kernel.bfloat16()), rtol=2**-6
    )


def test_functions_methods_operators_and_modules_alike() -> None:
    x, y = mat(), mat()
    ways: dict[str, list[Callable[[], Tensor]]] = {
        "matmul": [
            lambda: x @ y,
            lambda: torch.matmul(x, y),
            lambda: x.matmul(y),
            lambda: torch.ops.aten.matmul(x, y),
        ],
        "mul": [
            lambda: x * y,
            lambda: torch.mul(x, y),
            lambda: x.mul(y),
            lambda: x.multiply(y),
            lambda: torch.multiply(x, y),
        ],
        "exp": [lambda: x.exp(), lambda: torch.exp(x), lambda: torch.ops.aten.exp(x)],
        "relu": [lambda: F.relu(x), lambda: torch.relu(x), lambda: x.relu(), lambda: nn.ReLU()(x)],
        "softmax": [
            lambda: F.softmax(x, 1),
            lambda: x.softmax(1),
            lambda: torch.softmax(x, 1),
            lambda: nn.Softmax(1)(x),
        ],
        "div": [
            lambda: x / y,
            lambda: x.div(y),
            lambda: torch.true_divide(x, y),
            lambda: torch.divide(x, y),
        ],
        "sub": [lambda: x - y, lambda: x.sub(y), lambda: torch.subtract(x, y)],
        "abs": [lambda: abs(x), lambda: x.abs(), lambda: torch.absolute(x)],
        "neg": [lambda: -x, lambda: x.neg(), lambda: torch.negative(x)],
        "pow": [lambda: x**y, lambda: x.pow(y), lambda: torch.pow(x, y)],
        "expm1": [lambda: torch.expm1(x), lambda: torch.special.expm1(x)],
        "sigmoid": [
            lambda: torch.sigmoid(x),
            lambda: x.sigmoid(),
            lambda: torch.special.expit(x),
            lambda: F.sigmoid(x),
        ],
    }
    for op, calls in ways.items():
        with unamp.autocast("cpu", allow=op):
            assert [call().dtype for call in calls] == [BF16] * len(calls), op
        with unamp.autocast("cpu", level="O3", deny=op):
            assert [call().dtype for call in calls] == [F32] * len(calls), op


# --- distances ------------------------------------------------------------------------------------

#: Ways to compute the distances of all rows. The default multiplies matrices from 26 rows on.
DISTANCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "chosen": torch.cdist,
    "with a product": partial(torch.cdist, compute_mode="use_mm_for_euclid_dist"),
    "without": partial(torch.cdist, compute_mode="donot_use_mm_for_euclid_dist"),
    "the operator with a product": torch._euclidean_dist,
    **{f"order {p}": partial(torch.cdist, p=p) for p in (0.0, 1.0, 3.0, math.inf)},
}


def far_away(dtype: torch.dtype = F32) -> tuple[Tensor, Tensor]:
    """Return rows with distances that are small beside the rows' size.

    A low product could not tell the rows apart.
    """
    x, y = (16 + torch.randn(count, 4).to(BF16).to(dtype) for count in (30, 31))
    return x.requires_grad_(), y.requires_grad_()


@pytest.mark.parametrize("manner", DISTANCES)
@pytest.mark.parametrize(
    ("policy", "low"),
    [
        (Policy("O1", "bfloat16"), False),
        (Policy("O1", "bfloat16", allow=["cdist"]), True),
        (Policy("O2", "bfloat16"), True),
        (Policy("O2", "bfloat16", deny=["cdist"]), False),
        (Policy("O3", "bfloat16"), True),
        (Policy("OD", "bfloat16"), False),
        (Policy("O1", "bfloat16", preset="tensorflow"), False),
    ],
    ids=str,
)
def test_distances_are_one_whole_with_their_gradients(
    manner: str, policy: Policy, low: bool
) -> None:
    (x, y), call = far_away(), DISTANCES[manner]
    with policy_region(policy):
        found = call(x, y)
    gradients = torch.autograd.grad(found.float().sum(), (x, y))
    same = [each.detach().to(BF16).float().requires_grad_() if low else each for each in (x, y)]
    expected = call(*same)
    expected = expected.to(BF16) if low else expected
    assert found.dtype is (BF16 if low else F32)
    assert torch.equal(found, expected)
    known = torch.autograd.grad(expected.float().sum(), same)
    for gradient, wanted in zip(gradients, known, strict=True):
        assert torch.equal(gradient, wanted.to(BF16).float() if low else wanted)


# --- emulation ------------------------------------------------------------------------------------

#: Operations without a CPU kernel for some low dtype.
WITHOUT_KERNEL: dict[str, Callable[[Tensor], Tensor]] = {
    "cdist": lambda x: torch.cdist(x, x.flip(0)),
    "linalg_inv": lambda x: torch.linalg.inv(x),
    "linalg_svdvals": lambda x: torch.linalg.svdvals(x),
    "linalg_qr": lambda x: torch.linalg.qr(x)[1],
    "pdist": lambda x: F.pdist(x),
    "quantile": lambda x: torch.quantile(x, 0.3),
    "avg_pool3d": lambda x: F.avg_pool3d(x.view(1, 1, 2, 2, 4), (1, 1, 2)),
    "multi_margin_loss": lambda x: F.multi_margin_loss(x, torch.zeros(4, dtype=torch.long)),
}


@each_dtype
@pytest.mark.parametrize("op", WITHOUT_KERNEL)
def test_an_operation_without_a_low_kernel_is_emulated(op: str, dtype: str) -> None:
    call, low, x = WITHOUT_KERNEL[op], LOW[dtype], mat()
    with pytest.raises(RuntimeError):
        call(x.to(low))  # no kernel
    with unamp.autocast("cpu", dtype, allow=op):
        result = call(x)
    assert result.dtype == low
    assert torch.equal(result, call(x.to(low).float()).to(low))


@each_dtype
@pytest.mark.parametrize(
    "op", [op for op in WITHOUT_KERNEL if Policy("O1").decide(op) is Rule.WIDEST]
)
def test_an_operation_without_a_low_kernel_that_follows_its_inputs_is_emulated_too(
    op: str, dtype: str
) -> None:
    call, low = WITHOUT_KERNEL[op], LOW[dtype]
    x = mat(low)
    with unamp.autocast("cpu", dtype):
        result = call(x)
    assert result.dtype == low
    assert torch.equal(result, call(x.float()).to(low))


@each_dtype
def test_a_low_kernel_that_takes_some_calls_alone(dtype: str) -> None:
    with unamp.autocast("cpu", dtype, allow="matrix_power"):
        square = torch.matrix_power(mat(), 2)  # a product, which has a low kernel
        inverse = torch.matrix_power(mat() + 4 * torch.eye(4), -1)  # no low kernel
    assert square.dtype == inverse.dtype == LOW[dtype]


@each_dtype
def test_a_call_that_has_no_low_kernel_changes_nothing_for_those_after_it(dtype: str) -> None:
    x = mat() + 4 * torch.eye(4)
    with unamp.autocast("cpu", dtype, allow="matrix_power"):
        before = torch.matrix_power(x, 5)  # products, each of them rounded
        torch.matrix_power(x, -1)
        assert torch.equal(torch.matrix_power(x, 5), before)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_what_a_policy_comes_to_does_not_depend_on_calls_that_had_no_low_kernel() -> None:
    policy = Policy("O1", "bfloat16")
    before = plans._own_actions(policy, "cpu")
    with unamp.autocast("cpu", allow="add"), unamp.trace() as trace:
        sparse = mat().to_sparse_csr()
        torch.add(sparse, sparse)
    assert trace.records[-1].emulated
    assert plans._own_actions(policy, "cpu") == before


@each_dtype
def test_emulated_operations_have_gradients(dtype: str) -> None:
    low = LOW[dtype]
    x = (torch.rand(4, 4) + 4 * torch.eye(4)).requires_grad_()
    with unamp.autocast("cpu", dtype, allow="linalg_inv"):
        out = torch.linalg.inv(x)
    out.float().sum().backward()
    leaf = x.detach().to(low).float().requires_grad_()
    torch.linalg.inv(leaf).to(low).float().sum().backward()
    assert x.grad.dtype == F32
    assert torch.allclose(x.grad, leaf.grad.to(low).float())


# --- embedding, einsum ----------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["O1", "O2", "O3", "OD"])
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_an_embedding_with_sparse_gradients_computes_in_the_dtype_of_its_weight(
    kind: type[nn.Module], level: str
) -> None:
    layer, index = kind(4, 3, sparse=True), torch.tensor([[1, 2], [1, 3]])
    for policy in (
        Policy(level, "bfloat16"),
        Policy(level, "bfloat16", allow=("embedding", "embedding_bag")),
    ):
        layer.zero_grad()
        with policy_region(policy):
            out = layer(index)
        out.sum().backward()
        assert out.dtype == F32
        assert layer.weight.grad.is_sparse
        assert layer.weight.grad.dtype == F32


def test_a_gather_with_sparse_gradients_computes_in_the_dtype_of_its_input() -> None:
    x = mat().requires_grad_()
    with policy_region(Policy("O2", "bfloat16")):
        out = torch.gather(x, 1, torch.tensor([[0], [1]]), sparse_grad=True)
    out.sum().backward()
    assert out.dtype == F32
    assert x.grad.is_sparse


def test_weights_of_samples_follow_an_embedding_with_sparse_gradients() -> None:
    layer, index = nn.EmbeddingBag(4, 3, mode="sum", sparse=True), torch.tensor([[1, 2], [1, 3]])
    with policy_region(Policy("O2", "bfloat16")):
        out = layer(index, per_sample_weights=torch.ones(2, 2, dtype=BF16))
    assert torch.equal(out, layer(index))


@each_dtype
@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("i,j->ij", [(3,), (4,)]),
        ("ii->i", [(3, 3)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
    ],
)
def test_einsum_and_tensordot(equation: str, shapes: list[tuple[int, ...]], dtype: str) -> None:
    low, operands = LOW[dtype], [torch.rand(s) for s in shapes]
    with unamp.autocast("cpu", dtype):
        assert (
            torch.einsum(equation, *operands).dtype == torch.einsum(equation, operands).dtype == low
        )
    with unamp.autocast("cpu", dtype, deny="einsum"):
        result = torch.einsum(equation, *(o.to(low) for o in operands))
    assert torch.equal(result, torch.einsum(equation, *(o.to(low).float() for o in operands)))
    assert result.dtype == F32
    with unamp.autocast("cpu", dtype, allow="tensordot"):
        assert torch.tensordot(mat(), mat(), 1).dtype == low
    with unamp.autocast("cpu", dtype, deny="tensordot"):
        assert torch.tensordot(mat(low), mat(low), 1).dtype == F32


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_complex_numbers_of_low_parts_are_multiplied_with_others(dtype: str) -> None:
    parts = torch.linspace(0.1, 1, 8).reshape(2, 2, 2)
    low = parts.to(getattr(torch, dtype)).float()
    with unamp.autocast("cpu", dtype, level="O2"):
        found = torch.complex(parts[0], parts[1]) @ torch.view_as_complex(parts)
    assert torch.equal(found, torch.complex(low[0], low[1]) @ torch.view_as_complex(parts))


class _Refusing(TorchDispatchMode):
    """A mode in which one operator raises, as a kernel in Python without low dtypes does.

    The kernels of fake tensors are written in Python, too.
    """

    def __init__(self, operator: Any, error: Exception) -> None:
        super().__init__()
        self.operator, self.error, self.asked = operator, error, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is self.operator and args[0].dtype is torch.bfloat16:
            self.asked += 1
            raise self.error
        return func(*args, **(kwargs or {}))


def test_a_kernel_in_python_that_has_no_low_dtype_is_emulated() -> None:
    x = torch.linspace(-1, 1, 5)
    want = torch.special.entr(x.bfloat16().float()).bfloat16()
    refusing = _Refusing(
        torch.ops.aten.special_entr.default,
        NotImplementedError("\"entr\" not implemented for 'BFloat16'"),
    )
    with refusing, unamp.autocast("cpu", level="O3"):
        found = torch.special.entr(x)
    assert refusing.asked == 1
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, want)


@pytest.mark.parametrize("error", [RuntimeError("no memory"), ValueError("no BFloat16")], ids=repr)
def test_another_error_of_a_kernel_in_python_is_raised(error: Exception) -> None:
    refusing = _Refusing(torch.ops.aten.sinh.default, error)
    with pytest.raises(type(error), match=str(error)), refusing, unamp.autocast("cpu", level="O3"):
        torch.sinh(torch.ones(2))
    assert unamp.current_policy() is None
