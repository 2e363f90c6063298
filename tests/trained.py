"""Training with loss scaling comes to the loss of float32 training. Each framework's folder imports the test.

All networks, and 200 steps, are for `unamp conformance`.
"""

from __future__ import annotations

import pytest
from unamp_conformance.check.networks import NETWORKS
from unamp_conformance.check.training import check_training
from unamp_conformance.subjects import Subject

from unamp.policy import Policy

#: Networks, and the policies that each is trained under.
RUNS = [(network, policy) for network in ("mlp", "residual") for policy in (Policy("O1", "float16"), Policy("O2", "bfloat16"))]


@pytest.mark.parametrize(("network", "policy"), RUNS, ids=str)
def test_through_an_overflow_and_a_restart(framework: str, network: str, policy: Policy) -> None:
    """Twelve steps."""
    message, details = check_training(Subject(framework, "cpu"), NETWORKS[network], policy, 12)
    assert message == ""
    assert 0.0 < details["error"] < details["bound"]
