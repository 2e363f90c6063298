"""From a policy to what has to be done about it in TensorFlow.

TensorFlow has no autocast region of its own, so everything is carried out by what stands in while a region is open: for
operation types by `kernels`, for functions and layers that are one operation by `wholes`. A plan says what their rules do.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any

from unamp.adapter import How
from unamp.adapter.replacing import PatchGroup
from unamp.policy import Policy, Rule
from unamp.presets import preset
from unamp.vocabulary import vocabulary
from unamp_tensorflow.calls import Action
from unamp_tensorflow.facts import facts
from unamp_tensorflow.listing import emulated, has_kernel, op_types
from unamp_tensorflow.spellings import keras_in_use
from unamp_tensorflow.state import DTYPES, FLOAT32, NAMES
from unamp_tensorflow.wholes import Whole, functions, keras

__all__ = ["Plan", "how", "idle", "plan"]


class Plan:
    """What is done in TensorFlow for one policy.

    Attributes:
        policy: the policy, with lists of its own.
        low: the number of its low dtype.
        rules: the rule for every operation of the vocabulary.
        actions: what is done to each operation type; nothing to those that are not in it.
        quiet: whether functions and layers are left alone: inside one that is an operation by itself.
        watching: whether all operations are reported.
        key: what tells this plan's graphs from those of others.
    """

    def __init__(
        self, policy: Policy, rules: Mapping[str, Rule], *, key: Any = None, quiet: bool = False, watching: bool = False
    ) -> None:
        self.policy = policy
        self.low = DTYPES[policy.dtype]
        self.rules = _with_synonyms(policy, rules)
        self.quiet = quiet
        self.watching = watching
        self.key = ("unamp", policy, key)
        self._layers: dict[tuple[str, int], Plan] = {}

    def rule(self, op: str | None) -> Rule:
        """The rule in force. For an operation type that nobody has a name for: inputs that differ are widened."""
        return Rule.WIDEST if op is None else self.rules[op]

    def passes_through(self, op: str) -> bool:
        """Whether the parts of a function or layer follow their own rules."""
        return op in facts().transparent and op not in self.policy.allow and op not in self.policy.deny

    def advice(self, op: str | None) -> str:
        """What to use in place of a banned operation."""
        return "" if op is None else self.policy.reason(op).advice

    @cached_property
    def actions(self) -> Mapping[str, Action]:
        """See the class."""
        made = {}
        for name, op_type in op_types().items():
            if op_type.op is not None and vocabulary()[op_type.op].group == "cast":
                continue
            rule = self.rule(op_type.op)
            advice = self.advice(op_type.op) if rule is Rule.BANNED else ""
            if not self.policy.active:
                made[name] = Action(op_type, rule, 0)
            else:
                done = Action(op_type, rule, self.low, widen=self.policy.widen_results, advice=advice)
                if self.watching or not done.idle:
                    made[name] = done
        return made

    @cached_property
    def plainly(self) -> Mapping[str, int]:
        """The operations whose rule casts every input to one dtype and does nothing else, with the number of that dtype."""
        if self.policy.widen_results:
            return {}
        targets = {Rule.LOW: self.low, Rule.FP32: FLOAT32}
        return {
            op: targets[rule]
            for op, rule in self.rules.items()
            if rule in targets and vocabulary()[op].group != "norm" and not emulated(op) and not self.passes_through(op)
        }

    @property
    def wholes(self) -> tuple[PatchGroup, ...]:
        """The functions and layers whose rule their parts would not come to."""
        return (self._functions, self._of_keras) if keras_in_use() else (self._functions,)

    @cached_property
    def _functions(self) -> PatchGroup:
        return PatchGroup(whole.patch for whole in functions() if whole.patch is not None and self._needs(whole))

    @cached_property
    def _of_keras(self) -> PatchGroup:
        return PatchGroup(whole.patch for whole in keras() if whole.patch is not None and self._needs(whole))

    def _needs(self, whole: Whole) -> bool:
        if whole.layers is not None:
            return True
        if self.passes_through(whole.op):
            return False
        made_of = facts().made_of.get(whole.path)
        return self.watching or made_of is None or any(self.rules[part] is not self.rules[whole.op] for part in made_of)

    @cached_property
    def observed(self) -> Plan:
        """The same plan, for a thread whose operations are reported."""
        return Plan(self.policy, self.rules, quiet=self.quiet, watching=True)

    @cached_property
    def inside_function(self) -> Plan | None:
        """The plan for what a function that is one operation computes with: its inputs have their dtype already."""
        if not self.policy.active:
            return None
        if self.quiet:
            return self
        return Plan(Policy(self.policy.level, self.policy.dtype), _widest(), key="function", quiet=True)

    def inside_layer(self, op: str, target: int) -> Plan:
        """The plan for what a layer computes with in a dtype: its parameters are not among its inputs."""
        if (op, target) not in self._layers:
            low = NAMES[target] if target != FLOAT32 else self.policy.dtype
            policy = Policy(self.policy.level, low)
            rule = Rule.FP32 if target == FLOAT32 else Rule.LOW
            parts = facts().parts.get(op)
            if parts is None:
                rules = {name: was if vocabulary()[name].group in _MADE else rule for name, was in _widest().items()}
            else:  # the rest is an activation of the user's choice, an operation of its own
                rules = {name: rule if name in parts else was for name, was in self.rules.items()}
            self._layers[op, target] = Plan(policy, rules, key=(self.key, op, target))
        return self._layers[op, target]


#: Groups that keep their meaning inside a layer that is one operation. (What moves its parameters about is a part of it.)
_MADE = frozenset({"creation", "random", "cast", "comparison"})


def _with_synonyms(policy: Policy, rules: Mapping[str, Rule]) -> Mapping[str, Rule]:
    """The rules, where one function of TensorFlow is two operations: a user's list may name either."""
    named = {op: other for op, other in facts().synonyms.items() if other in policy.allow or other in policy.deny}
    return {**rules, **{op: rules[other] for op, other in named.items()}} if named else rules


@lru_cache(maxsize=1)
def _widest() -> Mapping[str, Rule]:
    return {name: Rule.UNTOUCHED if op.keeps_its_meaning else Rule.WIDEST for name, op in vocabulary().items()}


@lru_cache(maxsize=256)
def plan(policy: Policy) -> Plan | None:
    """The plan for a policy; None where nothing is to be done: a policy that changes nothing, and preset ``native``.

    What TensorFlow has of its own is a rewriter of graphs, for the whole process and not for a region.
    """
    if not policy.active or preset(policy.preset).delegates:
        return None
    return Plan(policy, policy.rules)


@lru_cache(maxsize=1)
def idle() -> Plan:
    """The plan of a thread in which no policy is in force, but operations are reported."""
    policy = Policy(enabled=False)
    return Plan(policy, policy.rules, watching=True)


def how(op: str, policy: Policy, device: str) -> How:
    """How a rule is carried out, for `unamp.explain`."""
    if "tensorflow" not in vocabulary()[op].spellings:
        return How.ABSENT
    made = plan(policy)
    if made is None or vocabulary()[op].group == "cast":
        return How.NATIVE
    rule = made.rules[op]
    mine = [each for each in op_types().values() if each.op == op]
    if rule is Rule.LOW and mine and not any(has_kernel(each.name, made.low) for each in mine):
        return How.EMULATED
    if rule in (Rule.UNTOUCHED, Rule.WIDEST) and mine and not any(e.several for e in mine if "Grad" not in e.name):
        return How.NATIVE
    return How.INTERCEPTED
