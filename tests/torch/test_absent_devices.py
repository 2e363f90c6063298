"""What PyTorch would run on a device that is not here: read from what reaches kernels of fake tensors, and judged."""

import pytest
from unamp_conformance.check.absentchecks import check_program
from unamp_conformance.check.networks import NETWORKS
from unamp_conformance.results import Result
from unamp_conformance.run.plan import Selection
from unamp_conformance.run.worker import perform, planned
from unamp_conformance.subjects import Subject
from unamp_torch import plans

from unamp import Policy

DEVICES = [name for name in Subject("torch", "cpu").absent_devices if name != "fake:hpu"]


def read(device: str, network: str, policy: Policy) -> tuple[str, list[str]]:
    wrong, details = check_program(Subject("torch", device), NETWORKS[network], policy)["decisions"]
    return wrong, details["trace"]


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


def test_a_rule_that_is_another_than_the_policys_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Policy("O1", "bfloat16", deny="linear")
    real = plans._action
    monkeypatch.setattr(
        plans, "_action", lambda p, rule, operator, device: None if operator.op == "linear" else real(p, rule, operator, device)
    )
    wrong, _ = read("fake:cuda", "mlp", policy)
    assert "linear (float32) computed in bfloat16 from float32 float32 float32, should be float32" in wrong
    assert "0 linear, forward: addmm in bfloat16, should be float32" in wrong


def test_a_network_that_fake_tensors_cannot_run_is_not_run() -> None:
    assert results("fake:cuda", "residual")[0].status == "not run"
    assert "outside of any region" in results("fake:cuda", "residual")[0].message


def test_a_device_that_is_not_here_has_decisions_and_no_numbers() -> None:
    (result,) = results("fake:mps", "conv")
    assert (result.check, result.status, result.device) == ("decisions", "passed", "fake:mps")
    assert "error" not in result.details


def results(device: str, network: str) -> list[Result]:
    subject = Subject("torch", device)
    chosen = Selection(networks=(network,), levels=("O1",), dtypes=("float16",), presets=("unamp",))
    return [result for item in planned(subject, chosen) for result in perform(subject, item)]
