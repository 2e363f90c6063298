"""Rules for plans that are made in the same way in every framework."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from unamp.policy import Policy, Rule
from unamp.vocabulary import vocabulary

__all__ = ["all_widest", "ban_message", "with_synonyms"]


def with_synonyms(policy: Policy, rules: Mapping[str, Rule], synonyms: Mapping[str, str]) -> Mapping[str, Rule]:
    """Return rules for a framework's own operations, where one function is two of them: a user's list may name either.

    Operations that were added in this process are left out: they come and go, and a plan stays.

    Args:
        policy: the policy.
        rules: its rules.
        synonyms: operations that are one function of the framework's with another, and the other.
    """
    named = {op: other for op, other in synonyms.items() if other in policy.allow or other in policy.deny}
    known = vocabulary()
    own = {op: rule for op, rule in rules.items() if not known[op].is_added}
    return {**own, **{op: rules[other] for op, other in named.items()}}


@cache
def all_widest() -> Mapping[str, Rule]:
    """Return rules under which every operation that a level can change takes the widest dtype of its inputs."""
    own = {name: op for name, op in vocabulary().items() if not op.is_added}
    return {name: Rule.UNTOUCHED if op.keeps_its_meaning else Rule.WIDEST for name, op in own.items()}


def ban_message(policy: Policy, op: str) -> str:
    """Return the text of the error for a banned operation."""
    return f"{op} is banned by the policy in force. {policy.reason(op).advice}".rstrip()
