"""From a policy to what has to be done about it in PaddlePaddle.

On a GPU Paddle's own `auto_cast` realises the preset ``native``, and under the preset ``paddle`` the rules of forward
functions. Everything else is carried out operation by operation, by what stands in for them while a region is open
(`patches`): a plan says which operations those are, and what their rules do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from typing import Any

from paddle.base import core

from unamp.adapter import How
from unamp.adapter.replacing import PatchGroup
from unamp.policy import Policy, Rule
from unamp.presets import preset
from unamp.vocabulary import vocabulary
from unamp_paddle import patches
from unamp_paddle.calls import Operator, perform
from unamp_paddle.facts import facts
from unamp_paddle.shortcuts import shortcut
from unamp_paddle.state import DTYPES

__all__ = ["Plan", "followed_natively", "how", "idle", "plan"]

_KEEPS = (Rule.UNTOUCHED, Rule.WIDEST)
_CHANGES = (Rule.LOW, Rule.BANNED)  # float32 inputs, too


class Plan:
    """What is done in PaddlePaddle for one policy.

    Attributes:
        policy: the policy, with lists of its own.
        low: its low dtype.
        rules: the rule for every operation of the vocabulary.
        busy: the operations, by Paddle's name, of which a call with float32 inputs alone must be looked at, too.
        watching: whether all operations are reported.
        delegated: whether Paddle's own AMP is put in force instead (preset ``native`` on a GPU).
        natively: whether Paddle's own AMP, in force beside it, sees to forward functions on a GPU; what is written in Python
            (`conv2d` with its bias, say) is still one operation.
        everything: the rule for all operations that a level can change, inside a layer that is one operation.
    """

    def __init__(
        self,
        policy: Policy,
        rules: Mapping[str, Rule],
        *,
        watching: bool = False,
        everything: Rule | None = None,
        delegated: bool = False,
        natively: bool = False,
    ) -> None:
        self.policy = policy
        self.low = DTYPES[policy.dtype]
        self.rules = _with_synonyms(policy, rules)
        self.watching = watching
        self.delegated = delegated
        self.natively = natively
        self.everything = everything

    def rule(self, op: str | None) -> Rule:
        """The rule in force for an operation. A forward function that nobody has a name for is never cast."""
        if op is None:
            return Rule.UNTOUCHED
        rule = self.rules[op]
        if self.everything is not None and rule is not Rule.UNTOUCHED:
            return self.everything
        return rule

    def carry_out(self, operator: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
        """Call an operation under its rule."""
        return perform(operator, self, args, kwargs)

    def advice(self, op: str | None) -> str:
        """What to use in place of a banned operation."""
        return "" if op is None else self.policy.reason(op).advice

    @cached_property
    def busy(self) -> frozenset[str]:
        """See the class."""
        return frozenset(operator.name for operator in patches.everything() if self._is_busy(operator))

    @cached_property
    def shortcuts(self) -> Mapping[Operator, Callable[..., Any]]:
        """What carries out rules for most calls, by the operation; see `shortcuts.shortcut`."""
        if self.policy.widen_results:
            return {}
        rules = {operator: self.rule(operator.op) for operator in patches.everything()}
        return {operator: found for operator, rule in rules.items() if (found := shortcut(operator, rule)) is not None}

    def _is_busy(self, operator: Operator) -> bool:
        if self.watching or operator.which is not None or operator.layer:
            return True
        if self.rule(operator.op) in _CHANGES:
            return True
        # What a whole is made of must not follow its own rules; nobody knows what some are made of.
        parts = facts().made_of.get(operator.op or "") if operator.whole else ()
        return parts is None or any(self.rule(part) in _CHANGES for part in parts)

    @cached_property
    def wholes(self) -> PatchGroup:
        """The functions and layers in Python whose rule their parts would not come to."""
        return patches.standing_in(operator for operator in patches.wholes() if self._needs(operator))

    def _needs(self, operator: Operator) -> bool:
        op = operator.op
        assert op is not None
        if op in facts().transparent:
            return op in self.policy.allow or op in self.policy.deny
        rule = self.rule(op)
        if operator.direct:
            return self.watching or rule not in _KEEPS
        if operator.view and vocabulary()[op].group != "comparison":
            return rule is not Rule.UNTOUCHED or any(self.rule(part) not in _KEEPS for part in facts().made_of.get(op, ()))
        if self.watching or operator.which is not None:
            return True
        if rule is Rule.UNTOUCHED and op not in facts().made_of:
            return False
        return op in facts().checks_dtypes or not self._part_follows(op, rule)

    def _part_follows(self, op: str, rule: Rule) -> bool:
        """Whether the one operation that a whole is made of does by itself what the whole's rule says.

        Several would each round their results, and widen their inputs one after the other. And which one it is may depend on
        the arguments: a rule from a list is the whole's own.
        """
        parts = facts().made_of.get(op, ())
        return parts == (op,) or (len(parts) == 1 and rule in _KEEPS and self.rule(parts[0]) is rule)

    @cached_property
    def comparisons(self) -> bool:
        """Whether a Tensor's comparison operators need more than Paddle does by itself."""
        return self.watching or any(self.rule(op) is not Rule.UNTOUCHED for op in ("eq", "ne", "lt", "le", "gt", "ge"))

    def needs(self) -> tuple[Any, ...]:
        """What is put in for a region under this plan, beside what every region needs."""
        return (self.wholes, patches.comparisons()) if self.comparisons else (self.wholes,)

    @cached_property
    def observed(self) -> Plan:
        """The same plan, for a thread whose operations are reported."""
        return Plan(self.policy, self.rules, watching=True, everything=self.everything)

    @cached_property
    def alone(self) -> Plan:
        """The same plan, where Paddle's own AMP cannot be in force beside it."""
        return Plan(self.policy, self.rules, everything=self.everything)

    def inside(self, rule: Rule) -> Plan:
        """The plan for what an operation that is one whole computes with."""
        return self._inside[rule]

    @cached_property
    def _inside(self) -> Mapping[Rule, Plan]:
        return {rule: Plan(self.policy, _EVERYTHING, everything=rule) for rule in Rule}


def _with_synonyms(policy: Policy, rules: Mapping[str, Rule]) -> Mapping[str, Rule]:
    """The rules, where one function of Paddle is two operations: a user's list may name either."""
    named = {op: other for op, other in facts().synonyms.items() if other in policy.allow or other in policy.deny}
    return {**rules, **{op: rules[other] for op, other in named.items()}} if named else rules


def _all_follow() -> Mapping[str, Rule]:
    return {name: Rule.UNTOUCHED if op.keeps_its_meaning else Rule.WIDEST for name, op in vocabulary().items()}


_EVERYTHING = _all_follow()


@lru_cache(maxsize=256)
def plan(policy: Policy, device: str | None) -> Plan | None:
    """The plan for a policy on ``"cpu"``, ``"gpu"``, or (None) wherever tensors can be in this process.

    None where nothing is to be done: a policy that changes nothing, and Paddle's own AMP on a CPU, which has none.
    """
    if not policy.active:
        return None
    if preset(policy.preset).delegates:
        on_gpu = device != "cpu" and core.is_compiled_with_cuda()
        stated = policy.delegated("paddle", "gpu") if on_gpu else policy.delegated("paddle", "cpu")
        return None if stated is None else Plan(stated, stated.rules, delegated=True)
    return Plan(policy, policy.rules, natively=followed_natively(policy, device, gpu=core.is_compiled_with_cuda()))


def followed_natively(policy: Policy, device: str | None, *, gpu: bool) -> bool:
    """Whether Paddle's own AMP decides about every forward function as the policy does.

    It has the lists of the preset ``paddle``, and no level O3. A user's lists stay with us: they hold operations, and
    Paddle's hold names of kernels.

    Args:
        policy: the policy.
        device: where it is to be in force.
        gpu: whether this Paddle computes on GPUs.
    """
    own = policy.preset == "paddle" and policy.level in ("OD", "O1", "O2")
    return gpu and device != "cpu" and own and not (policy.allow or policy.deny or policy.widen_results)


@lru_cache(maxsize=8)
def idle(*, watching: bool) -> Plan:
    """The plan of a thread in which no policy is in force, but low tensors must be computed with, or operations reported."""
    return Plan(Policy(enabled=False), Policy(enabled=False).rules, watching=watching)


def how(op: str, policy: Policy, device: str) -> How:
    """How a rule is carried out on a device, for `unamp.explain`."""
    found = [operator for operator in patches.everything() if operator.op == op]
    if not found and "paddle" not in vocabulary()[op].spellings:
        return How.ABSENT
    stated = policy.delegated("paddle", device)
    if stated is None or not stated.active or stated is not policy:
        return How.NATIVE
    if vocabulary()[op].group == "cast":
        return How.NATIVE
    if followed_natively(policy, device, gpu=device == "gpu") and not any(operator.whole for operator in found):
        return How.NATIVE
    rule = stated.rules[op]
    if rule is Rule.LOW and device == "cpu":
        return How.INTERCEPTED if found and all(operator.view for operator in found) else How.EMULATED
    return How.NATIVE if rule is Rule.UNTOUCHED else How.INTERCEPTED
