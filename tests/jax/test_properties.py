"""Whatever the policy, the network and the nesting: every operation computes what the policy says."""

from hypothesis import given
from properties import QUICK, Network, networks, run
from unamp_conformance.subjects import Subject

SUBJECT = Subject("jax", "cpu")


@QUICK
@given(networks)
def test_every_operation_of_a_network_computes_as_the_policy_says(network: Network) -> None:
    run(SUBJECT, network)
