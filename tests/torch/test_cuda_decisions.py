"""The dtypes of operations on CUDA, decided on fake CUDA tensors.

Fake tensors take device, shape and dtype through torch's real dispatcher.

Some code asks for the device itself: cuDNN's and attention's choice of a kernel, and the engine of
the backward pass. That code cannot run on fake tensors without a GPU, region or not. Gradients are
tested on the CPU, and read in test_absent_devices.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from own_lists import own_lists, tensors
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from unamp_torch import plans
from unamp_torch.conformance.fake_gradients import guard

import unamp
from unamp import BannedOperation, Policy, Rule
from unamp.adapter import How

F32, F16, BF16, F64 = torch.float32, torch.float16, torch.bfloat16, torch.float64
LOW = {"float16": F16, "bfloat16": BF16}

each_dtype = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])


@pytest.fixture(autouse=True)
def fake() -> Iterator[None]:
    guard("cuda")
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


def mat(dtype: torch.dtype = F32, device: str = "cuda") -> Tensor:
    return torch.empty(4, 4, dtype=dtype, device=device)


def gpu(policy: Policy) -> unamp.Region:
    return unamp.Region(policy, device="gpu")


@pytest.mark.parametrize(
    ("preset", "expected"),
    [("torch-cuda@2.11", BF16), ("torch-cuda@2.12", F32), ("torch-cuda", F32)],
)
def test_the_lists_of_another_version_are_followed(preset: Any, expected: torch.dtype) -> None:
    with gpu(Policy("O1", "bfloat16", preset=preset)):
        assert F.rms_norm(mat(BF16), (4,)).dtype == expected
        assert F.layer_norm(mat(BF16), (4,)).dtype == F32
        assert (
            F.cross_entropy(mat(BF16), torch.empty(4, dtype=torch.long, device="cuda")).dtype == F32
        )


CALLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mm": torch.mm,
    "matmul": torch.matmul,
    "linear": lambda x, y: F.linear(x, y, y.select(0, 0)),
    "conv2d": lambda x, y: F.conv2d(x.view(1, 1, 4, 4), y.view(1, 1, 4, 4)),
    "conv_transpose2d": lambda x, y: F.conv_transpose2d(x.view(1, 1, 4, 4), y.view(1, 1, 4, 4)),
    "baddbmm": lambda x, y: torch.baddbmm(x.view(1, 4, 4), y.view(1, 4, 4), y.view(1, 4, 4)),
    "einsum": lambda x, y: torch.einsum("ij,jk->ik", x, y),
    "scaled_dot_product_attention": lambda x, y: F.scaled_dot_product_attention(
        x.view(1, 1, 4, 4), y.view(1, 1, 4, 4), y.view(1, 1, 4, 4)
    ),
    "softmax": lambda x, _: F.softmax(x, 1),
    "log_softmax": lambda x, _: F.log_softmax(x, 1),
    "layer_norm": lambda x, _: F.layer_norm(x, (4,)),
    "group_norm": lambda x, _: F.group_norm(x, 2),
    "batch_norm": lambda x, _: F.batch_norm(x, None, None, training=True),
    "exp": lambda x, _: x.exp(),
    "pow": lambda x, _: x.pow(2.5),
    "sum": lambda x, _: x.sum(),
    "mean": lambda x, _: x.mean(),
    "cumsum": lambda x, _: x.cumsum(0),
    "mse_loss": F.mse_loss,
    "cross_entropy": lambda x, _: F.cross_entropy(
        x, torch.zeros(4, dtype=torch.long, device=x.device)
    ),
    "relu": lambda x, _: x.relu(),
    "gelu": lambda x, _: F.gelu(x),
    "tanh": lambda x, _: x.tanh(),
    "add": torch.add,
    "mul": torch.mul,
    "maximum": torch.maximum,
    "cat": lambda x, y: torch.cat([x, y]),
    "stack": lambda x, y: torch.stack([x, y]),
    "dot": lambda x, y: torch.dot(x.select(0, 0), y.select(0, 0)),
    "addcmul": lambda x, y: torch.addcmul(x, y, y),
    "max_pool2d": lambda x, _: F.max_pool2d(x.view(1, 4, 4), 2),
    "avg_pool2d": lambda x, _: F.avg_pool2d(x.view(1, 4, 4), 2),
    "embedding": lambda x, _: F.embedding(torch.zeros(2, dtype=torch.long, device=x.device), x),
}
TWO_INPUTS = {
    "mm", "matmul", "linear", "conv2d", "conv_transpose2d", "baddbmm", "einsum",
    "scaled_dot_product_attention", "mse_loss", "add", "mul", "maximum", "cat", "stack", "dot",
    "addcmul",
}  # fmt: skip


def check(policy: Policy, op: str, x: Tensor, y: Tensor) -> None:
    rule = policy.decide(op)
    inputs = {x.dtype, y.dtype} if op in TWO_INPUTS else {x.dtype}
    want = {Rule.LOW: LOW[policy.dtype], Rule.FP32: F32}.get(
        rule, x.dtype if len(inputs) == 1 else F32
    )
    if rule is Rule.NARROWEST and len(low := inputs - {F32}) == 1:
        (want,) = low
    result = CALLS[op](x, y)
    assert (result.dtype, result.device.type) == (want, "cuda"), (op, rule)


@each_dtype
@pytest.mark.parametrize("level", ["OD", "O1", "O2", "O3"])
@pytest.mark.parametrize(
    "preset", ["unamp", "torch-cuda", "torch-cpu", "paddle", "mindspore", "tensorflow", "apex"]
)
def test_every_preset_and_level(preset: str, level: str, dtype: str) -> None:
    policy = Policy(level, dtype, preset=preset)
    pairs = [
        (mat(one), mat(other))
        for one, other in ((F32, F32), (F16, F16), (BF16, BF16), (F32, F16), (BF16, F32))
    ]
    with gpu(policy):
        for op in CALLS:
            for x, y in pairs:
                check(policy, op, x, y)


@each_dtype
@pytest.mark.parametrize("where", ["allow", "deny"])
@pytest.mark.parametrize("preset", ["unamp", "torch-cuda", "paddle"])
def test_custom_lists(preset: str, where: str, dtype: str) -> None:
    every = Policy("O1", dtype, preset=preset, **{where: list(CALLS)})
    pairs = [(mat(), mat()), (mat(F16), mat(F16))]
    with gpu(every):
        for op in CALLS:
            for x, y in pairs:
                check(every, op, x, y)
    for named in ("add", "mm", "softmax", "batch_norm"):
        alone = Policy("O1", dtype, preset=preset, **{where: named})
        x, y = mat(), mat(BF16)
        with gpu(alone):
            for op in CALLS:
                check(alone, op, x, y)


LISTS = {
    "torch_fp16": ("low", torch),
    "nn_fp16": ("low", torch._C._nn),
    "linalg_fp16": ("low", torch._C._linalg),
    "torch_fp32": ("float32", torch),
    "nn_fp32": ("float32", torch._C._nn),
    "torch_need_autocast_promote": ("float32", torch),
    "torch_expect_builtin_promote": ("given", torch),
}

#: Operations that fake tensors cannot run without a GPU, region or not, in some build of torch.
NOT_FAKE = {
    "_convolution": "asks the driver, in some builds with CUDA",
    "cudnn_convolution": "asks cuDNN",
    "cudnn_convolution_transpose": "asks cuDNN",
    "gru_cell": "reads the device",
    "einsum": "torch's entry is malformed: its arguments are a string",
    "equal": "its result depends on values",
}


@cache
def cannot_run() -> frozenset[str]:
    """Return the operations that fake tensors cannot run here, outside of regions."""

    def wide(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.float() if value.is_floating_point() else value
        return type(value)(map(wide, value)) if isinstance(value, (list, tuple)) else value

    lists, failing = own_lists("AutocastTestLists", "cuda"), set()
    for attribute, (_, module) in LISTS.items():
        for name, args, *rest in getattr(lists, attribute):
            kwargs = rest[0] if rest and isinstance(rest[0], dict) else {}
            try:
                getattr(module, name)(*wide(args), **kwargs)
            except Exception:
                failing.add(name)
    return frozenset(failing)


@each_dtype
@pytest.mark.parametrize("preset", ["torch-cuda", "unamp", "native"])
@pytest.mark.parametrize("attribute", LISTS)
def test_everything_on_torchs_own_cuda_lists(attribute: str, preset: str, dtype: str) -> None:
    category, module = LISTS[attribute]
    wrong = {}
    for name, args, *rest in getattr(own_lists("AutocastTestLists", "cuda"), attribute):
        if name in cannot_run():
            continue
        kwargs = rest[0] if rest and isinstance(rest[0], dict) else {}
        want = {"low": LOW[dtype], "float32": F32, "given": rest[-1] if rest else None}[category]
        if preset == "unamp" and name in ("bilinear", "tensordot"):
            want = LOW[dtype]  # products; torch promotes them
        for call in [getattr(module, name, None), getattr(torch.Tensor, name, None)]:
            if call is None:
                continue
            with gpu(Policy("O1", dtype, preset=preset)):
                try:
                    found = {t.dtype for t in tensors(call(*args, **kwargs))}
                except Exception as error:
                    found = {repr(error)[:200]}
            if found != {want}:
                wrong[name] = found
    # torch's own promotion accepts one low dtype alone: under bfloat16 it refuses a float16
    # argument.
    if preset == "native" and dtype == "bfloat16":
        wrong = {name: found for name, found in wrong.items() if "prioritize" not in str(found)}
    assert not wrong


def test_no_more_is_left_out_than_is_known() -> None:
    assert cannot_run() <= NOT_FAKE.keys()
    if torch.version.cuda is None:
        assert NOT_FAKE.keys() - cannot_run() == {"_convolution"}


def test_the_ban() -> None:
    x = mat()
    with (
        gpu(Policy("O1", preset="torch-cuda")),
        pytest.raises(BannedOperation, match="with_logits"),
    ):
        F.binary_cross_entropy(x, x)
    with gpu(Policy("O1")):
        assert F.binary_cross_entropy(x.half(), x.half()).dtype == F32


def test_other_dtypes_in_place_and_outputs_are_left_alone() -> None:
    with gpu(Policy("O3", "float16")):
        assert torch.mm(mat(F64), mat(F64)).dtype == F64
        assert (mat(torch.int64) + 1).dtype == torch.int64
        x, out = mat(), mat()
        assert x.add_(mat()).dtype == x.addmm_(mat(), mat()).dtype == F32
        assert torch.mm(x, x, out=out) is out
        assert out.dtype == F32


# --- devices --------------------------------------------------------------------------------------


def dtypes(device: str) -> list[torch.dtype]:
    x = mat(device=device)
    return [torch.mm(x, x).dtype, (x + x).dtype, x.to(BF16).exp().dtype]


EVERYTHING = {"allow": ("add",), "deny": ("exp",)}


def test_a_region_for_one_device_leaves_the_other_alone() -> None:
    for _ in range(2):
        with unamp.autocast("cpu", "bfloat16", **EVERYTHING):
            assert dtypes("cpu") == [BF16, BF16, F32]
            assert dtypes("cuda") == [F32, F32, BF16]
        with gpu(Policy("O1", "float16", **EVERYTHING)):
            assert dtypes("cuda") == [F16, F16, F32]
            assert dtypes("cpu") == [F32, F32, BF16]
        with gpu(Policy("O1", "float16", preset="native")):
            assert dtypes("cuda") == [F16, F32, F32]
            assert dtypes("cpu") == [F32, F32, BF16]


def test_regions_for_different_devices_nest() -> None:
    with gpu(Policy("O1", "float16", **EVERYTHING)):
        with unamp.autocast("cpu", "bfloat16", allow="mm"):
            assert dtypes("cpu")[0] == BF16
            # As with torch.autocast, a region for one device does not end a region for another.
            assert dtypes("cuda") == [F16, F16, F32]
        assert dtypes("cuda") == [F16, F16, F32]
        assert dtypes("cpu") == [F32, F32, BF16]


def test_the_dtype_that_is_not_said_is_the_devices() -> None:
    with gpu(unamp.autocast("cuda").policy.replace(enabled=True)):
        # for an absent GPU a region is off, so switch it on
        assert dtypes("cuda")[0] == F16
        assert unamp.get_autocast_dtype() == "float16"
    with unamp.autocast("cpu"):
        assert dtypes("cpu")[0] == BF16


def test_torchs_own_switch_is_respected() -> None:
    with gpu(Policy("O1", "float16", **EVERYTHING)):
        with torch.autocast("cuda", enabled=False):
            assert dtypes("cuda") == [F32, F32, BF16]
        assert dtypes("cuda") == [F16, F16, F32]


def test_state_of_both_devices_is_as_before(native_state: Callable[[], Any]) -> None:
    before = native_state()
    with gpu(Policy("O1", "float16", **EVERYTHING)):
        dtypes("cuda")
        with pytest.raises(ZeroDivisionError), unamp.autocast("cpu", level="O3"):
            1 / 0  # noqa: B018
    assert native_state() == before


# --- cost -----------------------------------------------------------------------------------------


@each_dtype
@pytest.mark.parametrize("preset", ["torch-cuda", "unamp"])
def test_what_cuda_autocast_does_by_itself_is_not_intercepted(preset: str, dtype: str) -> None:
    explained = unamp.explain(Policy("O1", dtype, preset=preset), "torch", "gpu")
    # Without the promote list, for torch's promotion refuses the low dtype that is not the
    # region's; and without cross_entropy, whose log_softmax torch leaves low.
    common = [op for op in CALLS if op not in ("cat", "stack", "dot", "addcmul", "cross_entropy")]
    assert {op: explained[op].how["torch", "gpu"] for op in common} == dict.fromkeys(
        common, How.NATIVE
    )


def test_an_ordinary_network_meets_no_kernel_of_ours() -> None:
    import sys

    from unamp_torch import calls

    x, weight, bias = mat(), mat(), mat().select(0, 0)
    target = torch.zeros(4, dtype=torch.long, device="cuda")

    def loss() -> Tensor:
        hidden = F.gelu(F.layer_norm(F.relu(F.linear(x, weight, bias)), (4,)))
        return F.nll_loss(F.log_softmax(torch.softmax(hidden @ weight + bias, 1).tanh(), 1), target)

    called = []
    actions = {calls.low, calls.emulated, calls.in_float32, calls.in_widest, calls.untouched}
    codes = {action.__code__ for action in actions}

    def profile(frame: Any, event: str, argument: Any) -> None:
        # A kernel that another policy of this process has installed passes the call on.
        if event == "call" and frame.f_code in codes:
            called.append(frame.f_code.co_name)

    with gpu(Policy("O1", "float16")):
        loss()
        sys.setprofile(profile)
        try:
            result = loss()
        finally:
            sys.setprofile(None)
    assert result.dtype == F32
    assert called == []


def test_plans_for_a_machine_with_a_gpu_cover_both_devices() -> None:
    """Check the GPU's part of a plan by itself.

    Without a GPU, the plan of `device_type=None` does not cover one.
    """
    policy = Policy("O1", "float16", allow="add")
    assert plans.plan(policy, "gpu").devices == ("cuda",)
    assert plans.plan(policy, "cpu").devices == ("cpu",)
    assert plans.plan(policy, None).devices == (
        "cpu",
        *(["cuda"] if torch.cuda.is_available() else []),
        "meta",
    )
