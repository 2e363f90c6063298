"""The parts of plans that all frameworks share: rules, bans, and how rules are carried out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from typing import Self

from unamp.adapter.contract import How
from unamp.policy import Policy, Rule
from unamp.vocabulary import vocabulary

#: The operations that nearly all probability distributions compute with. Where one of them is low,
#: numbers next to 1 become 1, and the logarithm of what is left to 1 infinite.
DRAWING = ("add", "div", "log", "mul", "sub")


def lowers(rule: Callable[[str], Rule], ops: Iterable[str]) -> bool:
    """Return whether one of some operations may compute in a low dtype.

    Args:
        rule: returns the rule for an operation.
        ops: the operations.
    """
    return any(rule(op) in (Rule.LOW, Rule.NARROWEST) for op in ops)


class BasePlan:
    """A policy made ready for a framework whose rules are carried out call by call.

    See `unamp.adapter.state.Plan`.

    Args:
        policy: the policy, with lists of its own.
        rules: the rule for every operation of the vocabulary.
        reporting: whether all operations are reported.
    """

    def __init__(
        self, policy: Policy, rules: Mapping[str, Rule], *, reporting: bool = False
    ) -> None:
        self.policy = policy
        self.rules = rules
        self.reporting = reporting

    @classmethod
    @lru_cache(maxsize=16)
    def low_alone(cls, dtype: str) -> Self:
        """Return the plan under which everything is computed in a low dtype."""
        policy = Policy("O3", dtype)
        return cls(policy, policy.rules)

    @classmethod
    @lru_cache(maxsize=16)
    def without_policy(cls, *, reporting: bool = False) -> Self:
        """Return the plan without a policy, to compute with low tensors or to report operations."""
        policy = Policy(enabled=False)
        return cls(policy, policy.rules, reporting=reporting)

    def rule(self, op: str) -> Rule:
        """Return the rule in force for an operation."""
        return self.rules[op]

    def ban(self, op: str) -> str:
        """Return the text of the error for a banned operation."""
        return ban_message(self.policy, op)


def is_listed(policy: Policy, op: str) -> bool:
    """Return whether a user's lists name an operation."""
    return op in policy.allow or op in policy.deny


def with_synonyms(
    policy: Policy, rules: Mapping[str, Rule], synonyms: Mapping[str, str]
) -> Mapping[str, Rule]:
    """Return rules for a framework's own operations, where one function is two of them.

    A user's list may name either. Operations that were added in this process are left out: they
    come and go, while a plan stays.

    Args:
        policy: the policy.
        rules: its rules.
        synonyms: operations, each with the other one that is the same function in the framework.
    """
    named = {op: other for op, other in synonyms.items() if is_listed(policy, other)}
    own = {**rules, **{op: rules[other] for op, other in named.items()}}
    for op in _added(vocabulary().generation):
        own.pop(op, None)
    return own


@lru_cache(maxsize=1)
def _added(generation: int) -> tuple[str, ...]:
    return tuple(name for name, op in vocabulary().items() if op.is_added)


@cache
def all_widest() -> Mapping[str, Rule]:
    """Return rules with the widest dtype for every operation that a level can change."""
    own = {name: op for name, op in vocabulary().items() if not op.is_added}
    return {
        name: Rule.UNTOUCHED if op.keeps_its_meaning else Rule.WIDEST for name, op in own.items()
    }


def ban_message(policy: Policy, op: str) -> str:
    """Return the text of the error for a banned operation."""
    return f"{op} is banned by the policy in force. {policy.reason(op).advice}".rstrip()


def how_by_calls(op: str, rules: Mapping[str, Rule] | None, is_emulated: Callable[[], bool]) -> How:
    """Return the way in which the rule for an operation is carried out, call by call.

    Args:
        op: the operation.
        rules: the rules in force; None where there are none.
        is_emulated: whether the operation is emulated where its rule is low.
    """
    if rules is None or vocabulary()[op].group == "cast":
        return How.NATIVE
    if rules[op] is Rule.LOW and is_emulated():
        return How.EMULATED
    return How.NATIVE if rules[op] is Rule.UNTOUCHED else How.INTERCEPTED
