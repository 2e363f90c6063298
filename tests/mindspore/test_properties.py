"""Whatever the policy, the network and the nesting, operations compute what the policy says.

See `properties`.
"""

from properties import test_every_operation_of_a_network_computes_as_the_policy_says  # noqa: F401
