"""From a policy to what has to be done about it in MindSpore.

MindSpore's own strategy is one for all threads, knows primitives only and cannot compute in bfloat16 on a CPU. So in PyNative
mode everything is carried out operation by operation, by what stands in for them while a region is open (`listing`): a plan
says which operations those are, and what their rules do. For compiled graphs see `compiling`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any

from unamp.adapter import How
from unamp.adapter.plans import BasePlan, how_by_calls, is_listed
from unamp.policy import KEPT_POLICIES, Policy, Rule
from unamp_mindspore.calls import perform
from unamp_mindspore.facts import facts
from unamp_mindspore.listing import covers, operators
from unamp_mindspore.operators import Operator
from unamp_mindspore.state import DTYPES
from unamp_mindspore.state import device as device_in_use


class Plan(BasePlan):
    """A policy made ready for MindSpore.

    Attributes:
        changes_float32: the operations, by MindSpore's name, whose rule changes float32 inputs, or that are being reported.
        inside: the plan for what an operation is made of.
    """

    def __init__(self, policy: Policy, rules: Mapping[str, Rule], *, reporting: bool = False) -> None:
        super().__init__(policy, rules, reporting=reporting)
        self.low = DTYPES[policy.dtype]
        self.changes_float32 = frozenset(operator.name for operator in operators() if self._may_change_float32(operator))
        self.inside = Plan.without_policy() if policy.active or reporting else self

    def follows_parts(self, op: str) -> bool:
        """Return whether an operation's parts follow their own rules."""
        return op in facts().transparent and not is_listed(self.policy, op)

    def carry_out(self, operator: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
        """Call an operation under its rule."""
        return perform(self, operator, args, kwargs)

    def _may_change_float32(self, operator: Operator) -> bool:
        if operator.casts:
            return False
        changed = (op in facts().transparent or self.rule(op) in (Rule.LOW, Rule.BANNED) for op in operator.ops)
        return self.reporting or any(changed)

    @cached_property
    def observed(self) -> Plan:
        """The same plan, for a thread whose operations are reported."""
        return Plan(self.policy, self.rules, reporting=True)


@lru_cache(KEPT_POLICIES)
def plan(policy: Policy, device: str | None) -> Plan | None:
    """Return the plan for a policy on ``"cpu"``, ``"gpu"``, or (None) wherever this process computes.

    None where nothing is to be done: a policy that changes nothing.
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
