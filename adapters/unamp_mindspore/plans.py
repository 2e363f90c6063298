"""From a policy to what has to be done about it in MindSpore.

MindSpore's own strategy is one for all threads, knows primitives only and cannot compute in bfloat16 on a CPU. So in PyNative
mode everything is carried out operation by operation, by what stands in for them while a region is open (`listing`): a plan
says which operations those are, and what their rules do. For compiled graphs see `compiling`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache

from unamp.adapter import How
from unamp.policy import KEPT_POLICIES, Policy, Rule
from unamp.vocabulary import vocabulary
from unamp_mindspore.calls import carry_out, quick
from unamp_mindspore.facts import facts
from unamp_mindspore.listing import covers, operators
from unamp_mindspore.operators import Operator
from unamp_mindspore.state import DTYPES
from unamp_mindspore.state import device as device_in_use

__all__ = ["Plan", "how", "plan", "without_policy"]


class Plan:
    """A policy made ready for MindSpore.

    Attributes:
        policy: the policy, with lists of its own.
        low: its low dtype.
        rules: the rule for every operation of the vocabulary.
        reporting: whether all operations are reported.
        changes_float32: the operations, by MindSpore's name, whose rule changes float32 inputs, or that are being reported.
        inside: the plan for what an operation is made of.
    """

    # Asked for with every operation: in slots Python finds them at once.
    __slots__ = ("__dict__", "changes_float32", "inside", "low", "policy", "reporting", "rules")

    def __init__(self, policy: Policy, *, reporting: bool = False) -> None:
        self.policy = policy
        self.low = DTYPES[policy.dtype]
        self.rules = policy.rules
        self.reporting = reporting
        self.changes_float32 = frozenset(operator.name for operator in operators() if self._may_change_float32(operator))
        self.inside = without_policy() if policy.active or reporting else self

    def rule(self, op: str) -> Rule:
        """Return the rule in force for an operation."""
        return self.rules[op]

    def passes(self, op: str) -> bool:
        """Return whether an operation's parts follow their own rules."""
        return op in facts().transparent and op not in self.policy.allow and op not in self.policy.deny

    def low_alone(self, dtype: str) -> Plan:
        """Return a plan under which everything is computed in a low dtype, whatever this one says."""
        return _all_low(dtype)

    carry_out = carry_out

    @cached_property
    def quick(self) -> Mapping[Operator, Rule]:
        """Return the rules that `carry_out` itself carries out for most calls, by the operation."""
        if self.policy.widen_results:
            return {}
        rules = {operator: self.rule(operator.op) for operator in operators() if not self.passes(operator.op)}
        return {operator: rule for operator, rule in rules.items() if quick(operator, rule) is not None}

    def _may_change_float32(self, operator: Operator) -> bool:
        if operator.casts:
            return False
        changed = (op in facts().transparent or self.rule(op) in (Rule.LOW, Rule.BANNED) for op in operator.ops)
        return self.reporting or any(changed)

    @cached_property
    def observed(self) -> Plan:
        """The same plan, for a thread whose operations are reported."""
        return Plan(self.policy, reporting=True)


@lru_cache(maxsize=2)
def _all_low(dtype: str) -> Plan:
    return Plan(Policy("O3", dtype))


@lru_cache(KEPT_POLICIES)
def plan(policy: Policy, device: str | None) -> Plan | None:
    """Return the plan for a policy on ``"cpu"``, ``"gpu"``, or (None) wherever this process computes.

    None where nothing is to be done: a policy that changes nothing.
    """
    if not policy.active or (device is not None and device != device_in_use()):
        return None
    stated = policy.delegated("mindspore", device_in_use())
    return None if stated is None else Plan(stated)


@lru_cache(maxsize=2)
def without_policy(*, reporting: bool = False) -> Plan:
    """Return the plan without a policy, under which low tensors can be computed with, or operations are reported."""
    return Plan(Policy(enabled=False), reporting=reporting)


def how(op: str, policy: Policy, device: str) -> How:
    """Return the way in which a rule is carried out on a device, for `unamp.explain`."""
    if not covers(op):
        return How.ABSENT
    stated = policy.delegated("mindspore", device)
    if stated is None or not stated.active or vocabulary()[op].group == "cast":
        return How.NATIVE
    rule = stated.rules[op]
    if rule is Rule.LOW and device == "cpu":
        return How.INTERCEPTED if op in facts().views else How.EMULATED
    return How.NATIVE if rule is Rule.UNTOUCHED else How.INTERCEPTED
