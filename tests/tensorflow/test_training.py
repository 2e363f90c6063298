"""Training with loss scaling comes to the loss of float32 training; all networks and 200 steps are for `unamp conformance`."""

import pytest
from unamp_conformance.networks import NETWORKS
from unamp_conformance.subjects import Subject
from unamp_conformance.training import check_training

from unamp.policy import Policy


@pytest.mark.parametrize("policy", [Policy("O1", "float16"), Policy("O2", "bfloat16")], ids=str)
@pytest.mark.parametrize("network", ["mlp", "residual"])
def test_through_an_overflow_and_a_restart(network, policy):
    message, details = check_training(Subject("tensorflow", "cpu"), NETWORKS[network], policy, 12)
    assert message == ""
    assert 0.0 < details["error"] < details["bound"]
