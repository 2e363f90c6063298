"""Programs of PyTorch for a device that is not here: read from what reaches kernels of fake tensors, and judged."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import programs_there
import pytest
from programs_there import OPERATIONS, probed, reasons
from unamp_conformance.results import Result
from unamp_conformance.run.plan import Selection
from unamp_conformance.run.worker import perform, planned
from unamp_conformance.subjects import Subject
from unamp_torch import calls, plans
from unamp_torch.calls import Action
from unamp_torch.listing import Operator

from unamp import Policy, Rule

DEVICES = [name for name in Subject("torch", "cpu").absent_devices if name != "fake:hpu"]

read = partial(programs_there.read, "torch")


@pytest.fixture
def action(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], None]]:
    """Put another function in the place of the one that says what is done about an operator; no plan outlives it."""
    plans.forget()
    yield partial(monkeypatch.setattr, plans, "_action")
    monkeypatch.undo()
    plans.forget()


def test_cuda_mps_and_xpu_can_be_read() -> None:
    assert DEVICES == ["fake:cuda", "fake:mps", "fake:xpu"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("device", DEVICES)
def test_kernels_of_a_device_that_is_not_here_are_given_what_the_policy_says(device: str, dtype: str) -> None:
    for network in ("transformer", "mlp", "unet"):
        for level in ("O1", "O2"):
            wrong, _ = read(device, network, Policy(level, dtype))
            assert not wrong
    _, program = read(device, "transformer", Policy("O1", dtype))
    assert f"product: 1 linear: addmm, {dtype} -> {dtype}" in program
    assert "reduction: 13 softmax: _softmax, float32 -> float32" in program


def test_a_cross_entropy_on_cuda_takes_the_logarithm_in_float32() -> None:
    """Its log_softmax is called with its input's dtype stated, which autocast leaves as it is."""
    _, program = read("fake:cuda", "mlp", Policy("O1", "bfloat16"))
    assert "reduction: 5 cross_entropy: _log_softmax, float32 -> float32" in program


def test_a_rule_that_is_another_than_the_policys_is_caught(action: Callable[[Any], None]) -> None:
    policy = Policy("O1", "bfloat16", deny="linear")
    real = plans._action
    action(lambda p, rule, operator, device: None if operator.op == "linear" else real(p, rule, operator, device))
    wrong, _ = read("fake:cuda", "mlp", policy)
    assert "linear (float32) computed in bfloat16 from float32 float32 float32, should be float32" in wrong
    assert "0 linear, forward: addmm in bfloat16, should be float32" in wrong


def test_a_network_that_fake_tensors_cannot_run_is_not_run() -> None:
    assert results("fake:cuda", "residual")[0].status == "not run"
    assert "outside of any region" in results("fake:cuda", "residual")[0].message


def test_a_device_that_is_not_here_has_decisions_and_no_numbers() -> None:
    programs_there.only_decisions_are_read("torch", "fake:mps")


def test_an_operation_is_read_under_the_users_lists_and_at_every_level_in_both_dtypes() -> None:
    programs_there.operation_is_read_under_lists_and_levels("torch", "fake:cuda")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", OPERATIONS)
def test_an_operation_would_compute_there_as_the_policy_says(device: str, op: str) -> None:
    programs_there.operation_is_as_the_policy_says("torch", device, op)


@pytest.mark.parametrize("op", OPERATIONS)
def test_an_operation_whose_rule_is_flipped_is_caught(action: Callable[[Any], None], op: str) -> None:
    flipped = {Rule.LOW: calls.in_float32, Rule.FP32: calls.low}
    real = plans._action

    def spoilt(policy: Policy, rule: Rule, operator: Operator, device: str) -> Action | None:
        return flipped[rule] if operator.op == op and rule in flipped else real(policy, rule, operator, device)

    action(spoilt)
    found = {result.policy: result for result in probed(Subject("torch", "fake:cuda"), op)}
    assert "computed in float32, the policy says bfloat16" in found["allow bfloat16"].message
    assert "computed in bfloat16, the policy says float32" in found["deny bfloat16"].message


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("feed", ["float32", "low"])
def test_a_result_of_the_right_dtype_that_was_computed_in_another_is_caught(op: str, feed: str) -> None:
    programs_there.result_of_another_precision_is_caught("torch", "fake:cuda", op, feed)


def test_an_operation_that_the_default_preset_denies_is_one_whole_on_cuda() -> None:
    """PyTorch's lists follow it by its parts, of which the first subtracts in the dtype of the inputs."""
    assert {result.status for result in probed(Subject("torch", "fake:cuda"), "pairwise_distance")} == {"passed"}


@pytest.mark.parametrize(
    ("op", "why"),
    [
        ("masked_select", "what it gives depends on numbers"),
        ("grid_sample", "its kernel asks for the device itself"),
        ("grouped_mm", "the framework itself refuses the call"),
        ("scaled_mm", "there is no example call for scaled_mm"),
    ],
)
def test_an_operation_without_a_program_is_not_run_and_says_why(op: str, why: str) -> None:
    assert reasons(probed(Subject("torch", "fake:cuda"), op)) == {("not run", why)}


def results(device: str, network: str) -> list[Result]:
    subject = Subject("torch", device)
    chosen = Selection(networks=(network,), levels=("O1",), dtypes=("float16",), presets=("unamp",))
    return [result for item in planned(subject, chosen) for result in perform(subject, item)]
