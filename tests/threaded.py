"""Threads with policies of their own, all at the same time. Each framework's folder asks it of its own operations."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

from unamp import Policy, Rule, policy_region

POLICIES = [
    None, Policy(), Policy("O1", "bfloat16"), Policy("O2"), Policy("O2", "bfloat16"), Policy("O1", deny="matmul"),
    Policy("O3", "bfloat16"), Policy("OD"),
]  # fmt: skip


def every_thread_has_its_own_policy(dtypes: Callable[[], Sequence[str]], rounds: int) -> None:
    """Eight threads open and close regions, over and over.

    Args:
        dtypes: computes a `matmul`, an `add` and a `linear` of float32 tensors, and gives the names of their dtypes.
        rounds: how often, where the environment does not say.
    """
    wrong, rounds = [], int(os.environ.get("UNAMP_STRESS_ROUNDS", rounds))

    def work(policy: Policy | None) -> None:
        try:
            for _ in range(rounds):
                if policy is None:
                    found, expected = dtypes(), ["float32"] * 3
                else:
                    with policy_region(policy):
                        found = dtypes()
                    rules = [policy.decide(op) for op in ("matmul", "add", "linear")]
                    expected = [policy.dtype if rule is Rule.LOW else "float32" for rule in rules]
                if list(found) != expected:
                    wrong.append((policy, found))
        except Exception as error:
            wrong.append((policy, repr(error)))

    threads = [threading.Thread(target=work, args=(policy,)) for policy in POLICIES]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert wrong == []
