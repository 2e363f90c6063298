"""Programs of PyTorch for an absent device keep the policy.

The conformance suite reads each program from the kernels that fake tensors reach, and judges it.
"""

from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import programs_there
import pytest
import torch
from programs_there import *  # noqa: F403
from programs_there import OPERATIONS, probed, reasons
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from unamp_conformance.check.networks import NETWORKS
from unamp_conformance.subjects import Subject
from unamp_torch import calls, plans
from unamp_torch.calls import Action
from unamp_torch.conformance import fake_gradients, joint_graphs
from unamp_torch.conformance.absent_devices import absent_devices
from unamp_torch.conformance.fake_gradients import NoGuard, Places, gradients, guard
from unamp_torch.listing import Operator

from unamp import Policy, Rule
from unamp.adapter.absent_devices import AbsentDevice, Unreadable
from unamp.regions import Region

pytestmark = pytest.mark.beside_kernels

DEVICES = [name for name in Subject("torch", "cpu").absent_devices if name != "fake:hpu"]

read = partial(programs_there.read, "torch")


@pytest.fixture
def action(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], None]]:
    """Replace the function that chooses the action for an operator.

    Plans made before or during the replacement are forgotten.
    """
    plans.forget()
    yield partial(monkeypatch.setattr, plans, "_action")
    monkeypatch.undo()
    plans.forget()


def test_cuda_mps_and_xpu_can_be_read() -> None:
    assert DEVICES == ["fake:cuda", "fake:mps", "fake:xpu"]


@pytest.mark.parametrize(("level", "dtype"), [("O1", "bfloat16"), ("O2", "float16")])
@pytest.mark.parametrize("device", DEVICES)
def test_kernels_of_a_device_that_is_not_here_are_given_what_the_policy_says(
    device: str, level: str, dtype: str
) -> None:
    for network in ("mlp", "unet", "transformer"):
        wrong, program = read(device, network, Policy(level, dtype))
        assert not wrong
    assert f"product: 1 linear: addmm, {dtype} -> {dtype}" in program
    softmax = "float32" if level == "O1" else dtype
    assert f"reduction: 13 softmax: _softmax, {softmax} -> {softmax}" in program


def test_a_cross_entropy_on_cuda_takes_the_logarithm_in_float32() -> None:
    """PyTorch states the input's dtype to log_softmax; autocast obeys a stated dtype."""
    _, program = read("fake:cuda", "mlp", Policy("O1", "bfloat16"))
    assert "reduction: 5 cross_entropy: _log_softmax, float32 -> float32" in program


def test_a_rule_that_is_another_than_the_policys_is_caught(action: Callable[[Any], None]) -> None:
    policy = Policy("O1", "bfloat16", deny="linear")
    real = plans._action
    action(
        lambda p, rule, operator, device: (
            None if operator.op == "linear" else real(p, rule, operator, device)
        )
    )
    wrong, _ = read("fake:cuda", "mlp", policy)
    assert (
        "linear (float32) computed in bfloat16 from float32 float32 float32, should be float32"
        in wrong
    )
    assert "0 linear, forward: addmm in bfloat16, should be float32" in wrong


@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_takes_the_same_decisions_eagerly_traced_and_on_the_cpu(network: str) -> None:
    if network == "lstm" and torch.backends.cuda.is_built():
        with pytest.raises(Unreadable, match="its kernel asks for the device itself"):
            # the kernel is cuDNN's
            read("fake:cuda", network, Policy("O1", "float16"))
        return
    wrong, program = read("fake:cuda", network, Policy("O1", "float16"))
    assert not wrong
    assert any(", backward: " in computed for computed in program)


def test_gradients_are_computed_in_the_dtypes_of_what_they_are_the_gradients_of() -> None:
    _, program = read("fake:cuda", "transformer", Policy("O1", "bfloat16"))
    assert "product: 1 linear, backward: mm, bfloat16 -> bfloat16" in program
    assert "reduction: 13 softmax, backward: _softmax_backward_data, float32 -> float32" in program


@pytest.fixture
def gradients_under(monkeypatch: pytest.MonkeyPatch) -> Callable[[ModuleType, Policy], None]:
    """Compute the gradients that a module asks for under another policy.

    Their dtypes stay right; their computation does not.
    """

    def put(module: ModuleType, policy: Policy) -> None:
        def spoilt(*args: Any, **kw: Any) -> Any:
            with Region(policy, framework="torch", device="gpu"):
                return gradients(*args, **kw)

        monkeypatch.setattr(module, "gradients", spoilt)

    return put


GradientsUnder = Callable[[ModuleType, Policy], None]


def test_a_rule_that_is_another_in_the_backward_pass_alone_is_caught(
    gradients_under: GradientsUnder,
) -> None:
    gradients_under(fake_gradients, Policy("O1", "bfloat16", deny="mm"))
    wrong, _ = read("fake:cuda", "mlp", Policy("O1", "bfloat16"))
    assert "0 linear, backward: mm in float32, should be bfloat16" in wrong
    assert "forward" not in wrong


def test_gradients_of_a_product_that_are_computed_in_float32_are_caught(
    gradients_under: GradientsUnder,
) -> None:
    gradients_under(fake_gradients, Policy("O1", "bfloat16", deny="mm"))
    found = {
        result.policy: result.message for result in probed(Subject("torch", "fake:cuda"), "linear")
    }
    wrong = found["allow bfloat16"]
    assert (
        "float32 inputs, backward: computed in no known way (), the policy says bfloat16" in wrong
    )
    assert "forward" not in wrong


def test_gradients_of_what_is_denied_that_are_computed_in_a_low_dtype_are_caught(
    gradients_under: GradientsUnder,
) -> None:
    gradients_under(fake_gradients, Policy("O1", "bfloat16", allow="mul"))
    found = {
        result.policy: result.message for result in probed(Subject("torch", "fake:cuda"), "exp")
    }
    wrong = found["deny bfloat16"]
    assert "float32 inputs, backward: computed in bfloat16, the policy says float32" in wrong
    assert "forward" not in wrong


def test_a_traced_graph_whose_gradients_are_others_is_caught(
    gradients_under: GradientsUnder,
) -> None:
    gradients_under(joint_graphs, Policy("O1", "bfloat16", deny="mm"))
    wrong, _ = read("fake:cuda", "mlp", Policy("O1", "bfloat16"))
    assert "traced:cuda: 0 linear, backward: mm in float32, should be bfloat16" in wrong
    assert "0 linear, backward: float32 -> float32, on traced:cuda alone, not on fake:cuda" in wrong
    assert "forward" not in wrong


@pytest.fixture
def region_on(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Policy], None]:
    """Read a program with the device's region under another policy."""

    def put(name: str, wrong: Policy) -> None:
        real = Subject.region_for

        def spoilt(subject: Subject, policy: Policy, device: AbsentDevice) -> Any:
            return real(subject, wrong if device.name == name else policy, device)

        monkeypatch.setattr(Subject, "region_for", spoilt)

    return put


RegionOn = Callable[[str, Policy], None]


def test_a_traced_graph_with_another_rule_is_caught(region_on: RegionOn) -> None:
    region_on("traced:cuda", Policy("O1", "bfloat16", allow="softmax"))
    wrong, _ = read("fake:cuda", "transformer", Policy("O1", "bfloat16"))
    assert "traced:cuda: 13 softmax, forward: _softmax in bfloat16, should be float32" in wrong
    assert "13 softmax: float32 -> float32, on fake:cuda alone, not on traced:cuda" in wrong


def test_another_rule_on_the_cpu_is_caught(region_on: RegionOn) -> None:
    region_on("fake:cpu", Policy("O1", "bfloat16", deny="linear"))
    wrong, _ = read("fake:cuda", "mlp", Policy("O1", "bfloat16"))
    assert "0 linear, backward: bfloat16 -> bfloat16, on fake:cuda alone, not on fake:cpu" in wrong


def test_gradients_are_those_of_the_engine() -> None:
    """Check gradients bit by bit.

    One tensor is used twice, one is broadcast, one is not used, and dtypes differ.
    """
    torch.manual_seed(0)
    x, w, b, unused = torch.randn(4, 8), torch.randn(8, 8), torch.randn(8), torch.randn(2)
    leaves = [tensor.requires_grad_() for tensor in (x, w, b, unused)]
    hidden = torch.tanh(x.bfloat16() @ w.bfloat16()).float() + b
    values, places = torch.max(hidden * hidden.exp(), dim=1)
    result = (values * x[:, 0]).sum() + hidden.mean() * places.float().sum()
    expected = torch.autograd.grad(result, leaves, retain_graph=True, allow_unused=True)
    found = gradients([result], leaves, [torch.ones_like(result)], places=Places())
    assert found[3] is expected[3] is None
    for ours, engines in zip(found[:3], expected[:3], strict=True):
        assert ours is not None
        assert ours.dtype == engines.dtype
        assert torch.equal(ours, engines)


def test_a_gradient_that_is_written_in_python_says_that_it_is_not_read() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return 2 * gradient

    x = torch.ones(2, requires_grad=True)
    apply: Any = Twice.apply
    result = apply(x).sum()
    with pytest.raises(
        fake_gradients.Inexpressible,
        match="TwiceBackward is a function of autograd that is written in Python",
    ) as e:
        gradients([result], [x], [torch.ones(())], places=Places())
    assert absent_devices()[0].unreadable(e.value).why == "its gradient is written in Python"


def test_a_build_that_cannot_be_given_a_guard_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_gradients, "_REGISTER", "no such function")
    with pytest.raises(
        NoGuard, match="has no guard for xpu, and cannot be given one: .*no such function"
    ) as raised:
        guard.__wrapped__("xpu")
    assert (
        absent_devices()[0].unreadable(raised.value).why
        == "this build of PyTorch cannot be given a guard for the device"
    )


@pytest.mark.parametrize("op", OPERATIONS)
def test_an_operation_whose_rule_is_flipped_is_caught(
    action: Callable[[Any], None], op: str
) -> None:
    flipped = {Rule.LOW: calls.in_float32, Rule.FP32: calls.low}
    real = plans._action

    def spoilt(policy: Policy, rule: Rule, operator: Operator, device: str) -> Action | None:
        return (
            flipped[rule]
            if operator.op == op and rule in flipped
            else real(policy, rule, operator, device)
        )

    action(spoilt)
    found = {result.policy: result for result in probed(Subject("torch", "fake:cuda"), op)}
    assert "computed in float32, the policy says bfloat16" in found["allow bfloat16"].message
    assert "computed in bfloat16, the policy says float32" in found["deny bfloat16"].message


def test_an_operation_that_the_default_preset_denies_is_one_whole_on_cuda() -> None:
    """PyTorch's lists name only parts of `pairwise_distance`.

    The first part subtracts in the dtype of the inputs.
    """
    assert {
        result.status for result in probed(Subject("torch", "fake:cuda"), "pairwise_distance")
    } == {"passed"}


@pytest.mark.parametrize(
    ("op", "why"),
    [
        ("masked_select", "what it gives depends on numbers"),
        ("gru_cell", "its kernel asks for the device itself"),
        ("grouped_mm", "the framework itself refuses the call"),
        ("scaled_mm", "there is no example call for scaled_mm"),
    ],
)
def test_an_operation_without_a_program_is_not_run_and_says_why(op: str, why: str) -> None:
    assert reasons(probed(Subject("torch", "fake:cuda"), op)) == {("not run", why)}


LISTED: dict[str, Any] = {
    "mm": lambda x: x @ x,
    "linear": lambda x: F.linear(x, x),
    "conv_transpose3d": lambda x: F.conv_transpose3d(x.view(1, 1, 1, 4, 4), x.view(1, 1, 1, 4, 4)),
    "exp": torch.exp,
    "softmax": lambda x: F.softmax(x, -1),
    "norm": lambda x: x.norm(),
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "mse_loss": lambda x: F.mse_loss(x, x),
    "interpolate": lambda x: F.interpolate(x.view(1, 1, 4, 4), scale_factor=2),
    "relu": torch.relu,
    "add": lambda x: x + x.float(),
    "addcmul": lambda x: torch.addcmul(x, x.float(), x),
    "cross_entropy": lambda x: F.cross_entropy(
        x, torch.zeros(4, dtype=torch.long, device=x.device)
    ),
}


@pytest.mark.parametrize("preset", ["own", "native"])
@pytest.mark.parametrize(("device", "own"), [("mps", "torch-mps"), ("xpu", "torch-cuda")])
def test_pytorchs_own_lists_for_other_devices(device: str, own: str, preset: str) -> None:
    """Fake tensors go through PyTorch's dispatcher as tensors of a present device do.

    On a machine with a GPU they need the device itself.
    """
    region = Region(
        Policy("O1", "bfloat16", preset=own if preset == "own" else "native"), device=device
    )

    def answer(call: Any, dtype: torch.dtype) -> tuple[torch.dtype, torch.dtype]:
        x = torch.empty(4, 4, dtype=dtype, device=device)
        with region:
            ours = call(x).dtype
        torch.set_autocast_enabled(device, True)
        torch.set_autocast_dtype(device, torch.bfloat16)
        try:
            return ours, call(x).dtype
        finally:
            torch.set_autocast_dtype(device, torch.float16)
            torch.set_autocast_enabled(device, False)

    with FakeTensorMode():
        for op, call in LISTED.items():
            for dtype in (torch.float32, torch.bfloat16):
                ours, theirs = answer(call, dtype)
                assert ours is theirs, (op, dtype)


@pytest.mark.parametrize("level", ["O1", "O2", "O3", "OD"])
def test_every_level_on_another_accelerator(level: str) -> None:
    """An absent device answers in the CPU's dtypes."""
    policy = Policy(level, "bfloat16")
    with FakeTensorMode():
        for op, call in LISTED.items():
            for dtype in (torch.float32, torch.bfloat16):
                answers = []
                for device in ("cpu", "mps"):
                    x = torch.empty(4, 4, dtype=dtype, device=device)
                    with Region(policy, device=device):
                        answers.append(call(x).dtype)
                assert answers[0] is answers[1], (op, dtype)
