"""Whatever the policy, the network and the nesting: every operation computes what the policy says; see `properties`."""

from properties import test_every_operation_of_a_network_computes_as_the_policy_says  # noqa: F401
