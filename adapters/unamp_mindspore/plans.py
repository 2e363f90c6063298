"""Plans for MindSpore: a policy's rules, and what a call needs to follow them quickly.

MindSpore's own strategy is the same for all threads, knows primitives only, and cannot compute in
bfloat16 on a CPU. So in PyNative mode unamp carries out everything itself, call by call, in the
functions that replace MindSpore's while a region is open (`listing`). For compiled graphs see
`compiling`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache, cached_property, lru_cache

from unamp.adapter import How
from unamp.adapter.plans import BasePlan, how_by_calls, is_listed
from unamp.policy import KEPT_POLICIES, Policy, Rule
from unamp_mindspore.calls import carry_out
from unamp_mindspore.facts import facts
from unamp_mindspore.listing import covers, operators
from unamp_mindspore.operators import Operator
from unamp_mindspore.state import DTYPES
from unamp_mindspore.state import device as device_in_use


class Plan(BasePlan):
    """A policy made ready for MindSpore.

    Attributes:
        changes_float32: MindSpore's names of the operations whose calls must be looked at even if
            all inputs are float32: a rule changes these, or the thread is traced.
        inside: the plan for the operations inside an operation that no rule changes.
    """

    # Slots, since every call reads these: an attribute in one is found faster.
    __slots__ = ("_unlisted", "changes_float32", "inside", "low", "policy", "reporting", "rules")

    def __init__(
        self, policy: Policy, rules: Mapping[str, Rule], *, reporting: bool = False
    ) -> None:
        super().__init__(policy, rules, reporting=reporting)
        self.low = DTYPES[policy.dtype]
        self._unlisted = self._without_lists() if policy.allow or policy.deny else None
        self.changes_float32 = self._all_that_change_float32()
        self.inside = Plan.without_policy() if policy.active or reporting else self

    def follows_parts(self, op: str) -> bool:
        """Return whether an operation's parts follow their own rules."""
        return op in facts().transparent and not is_listed(self.policy, op)

    carry_out = carry_out

    @cached_property
    def quick(self) -> Mapping[Operator, Rule]:
        """Return the rules of the operations that `carry_out` may do without the performer."""
        if self.policy.widen_results:
            return {}  # `carry_out` widens no results
        others, decided = (
            ({}, operators())
            if self._unlisted is None
            else (dict(self._unlisted.quick), self._listed())
        )
        for operator in decided:
            others.pop(operator, None)
        plain = (
            operator
            for operator in decided
            if operator.plain and not self.follows_parts(operator.op)
        )
        return {
            **others,
            **{
                operator: rule
                for operator in plain
                if (rule := self.rule(operator.op)) is not Rule.BANNED
            },
        }

    def _without_lists(self) -> Plan | None:
        """Return the kept plan of the policy without the user's lists.

        This plan differs from that one in few operations, so it is made faster from it.
        """
        unlisted = plan(self.policy.replace(allow=(), deny=()), None)
        return unlisted.observed if unlisted is not None and self.reporting else unlisted

    def _listed(self) -> Sequence[Operator]:
        """Return the operations whose rule the user's lists may change."""
        assert self._unlisted is not None
        before, named = self._unlisted.rules, {*self.policy.allow, *self.policy.deny}
        changed = (
            op for op, rule in self.rules.items() if op in named or rule is not before.get(op)
        )
        return [operator for op in changed for operator in _operators_of().get(op, ())]

    def _all_that_change_float32(self) -> frozenset[str]:
        if self._unlisted is None:
            return frozenset(
                operator.name for operator in operators() if self._may_change_float32(operator)
            )
        listed = self._listed()
        changing = {operator.name for operator in listed if self._may_change_float32(operator)}
        return (
            self._unlisted.changes_float32.difference(operator.name for operator in listed)
            | changing
        )

    def _may_change_float32(self, operator: Operator) -> bool:
        if operator.casts:
            return False
        changed = (
            op in facts().transparent or self.rule(op) in (Rule.LOW, Rule.BANNED)
            for op in operator.ops
        )
        return self.reporting or any(changed)

    @cached_property
    def observed(self) -> Plan:
        """The same plan, for a thread with an open trace."""
        return Plan(self.policy, self.rules, reporting=True)


@cache
def _operators_of() -> Mapping[str, Sequence[Operator]]:
    """Return the operators of each operation, and all others with the name of one in MindSpore.

    `changes_float32` holds these names, so operators of one name must be decided together.
    """
    by_name = defaultdict[str, list[Operator]](list)
    for operator in operators():
        by_name[operator.name].append(operator)
    found = defaultdict[str, dict[Operator, None]](dict)
    for operator in operators():
        for op in operator.ops:
            found[op].update(dict.fromkeys(by_name[operator.name]))
    return {op: tuple(those) for op, those in found.items()}


@lru_cache(KEPT_POLICIES)
def plan(policy: Policy, device: str | None) -> Plan | None:
    """Return the plan for a policy on a device; None for a policy that changes nothing.

    The device is ``"cpu"``, ``"gpu"``, or None for the device of this process.
    """
    if not policy.active or (device is not None and device != device_in_use()):
        return None
    stated = policy.delegated("mindspore", device_in_use())
    return None if stated is None else Plan(stated, stated.rules)


def how(op: str, policy: Policy, device: str) -> How:
    """Return the way in which a rule is carried out on a device, for `unamp.explain`."""
    if not covers(op):
        return How.ABSENT
    stated = policy.delegated("mindspore", device)
    rules = stated.rules if stated is not None and stated.active else None
    return how_by_calls(op, rules, lambda: device == "cpu" and op not in facts().views)
