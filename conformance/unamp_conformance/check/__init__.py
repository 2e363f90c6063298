"""The checks: what is run under a policy, the numbers that it must give, and what its precision was."""
