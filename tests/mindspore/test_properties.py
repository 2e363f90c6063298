"""Operations compute what the policy says, for random policies, networks and nestings.

See `properties`.
"""

from properties import test_every_operation_of_a_network_computes_as_the_policy_says  # noqa: F401
