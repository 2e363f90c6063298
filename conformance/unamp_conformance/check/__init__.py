"""The checks: the programs that run under a policy, their right numbers and their precision."""
