"""From a policy to a plan: what its rules come to in JAX, for primitives, composite operations and layers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cached_property, lru_cache

from unamp.adapter import How
from unamp.adapter.observing import traced
from unamp.adapter.plans import ban_message, with_synonyms
from unamp.policy import Policy, Rule
from unamp.presets import preset
from unamp.vocabulary import vocabulary
from unamp_jax.composites import emulates
from unamp_jax.facts import facts
from unamp_jax.spellings import libraries, primitives
from unamp_jax.state import DTYPES, PrimitiveRule

__all__ = ["JaxPlan", "how", "plan", "without_policy"]

#: Groups that keep their meaning inside of a layer. (Moving its parameters about is a part of the layer.)
_UNCHANGED = frozenset({"creation", "random", "cast", "comparison"})


class JaxPlan:
    """A policy made ready for JAX; see `unamp_jax.state.Plan`.

    JAX's caches tell traces apart by plans. Those of one policy are equal, however often they are made again: what was traced
    for a policy is found as long as JAX remembers it.

    Args:
        key: tells what the plan is made of, beside its rules.
        policy: the policy.
        rules: the rules for operations, before synonyms.

    Attributes:
        policy: the policy.
        low: its low dtype.
        rules: the rule for every operation of the vocabulary.
    """

    def __init__(self, key: tuple[Hashable, ...], policy: Policy, rules: Mapping[str, Rule]) -> None:
        self._key = key
        self._hash = hash(key)
        self.policy = policy
        self.low = DTYPES[policy.dtype]
        self.rules = with_synonyms(policy, rules, facts().synonyms)
        self._within: dict[tuple[str, Rule, bool], JaxPlan] = {}

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, JaxPlan) and self._hash == other._hash and self._key == other._key)

    def rule(self, op: str) -> Rule:
        """Return the rule in force for an operation."""
        return self.rules[op]

    def follows_parts(self, op: str, path: str) -> bool:
        """Return whether the parts of an operation follow their own rules, and it has none."""
        known = facts()
        if op in known.transparent or path in known.transparent:
            return op not in self.policy.allow and op not in self.policy.deny
        return op in known.divisible and op not in self.policy.deny and self._denies_part(op)

    def _denies_part(self, op: str) -> bool:
        return any(part in self.policy.deny for part in vocabulary()[op].parts)

    def ban(self, op: str) -> str:
        """Return the text of the error for a banned operation."""
        return ban_message(self.policy, op)

    @cached_property
    def primitives(self) -> Mapping[str, PrimitiveRule]:
        """The rules for primitives, by name; what is not here is left alone."""
        return {name: (op, self.rules[op], traced(op)) for name, op in primitives().items() if name not in facts().left}

    @cached_property
    def observed(self) -> JaxPlan:
        """The same plan once more: what was traced for it reports."""
        return JaxPlan((*self._key, "observed"), self.policy, self.rules)

    def within(self, op: str, rule: Rule, activated: bool = False) -> JaxPlan:
        """Return the plan inside a layer that is one operation, whose parameters are not among its arguments."""
        key = op, rule, activated
        if key not in self._within:
            parts = facts().parts.get(op) if activated else None
            rules = {
                name: self.rules[name] if parts is not None and name not in parts
                else Rule.UNTOUCHED if known.group in _UNCHANGED else rule
                for name, known in vocabulary().items()
                if not known.is_added
            }  # fmt: skip
            self._within[key] = JaxPlan((*self._key, key), self.policy, rules)
        return self._within[key]


def plan(policy: Policy) -> JaxPlan | None:
    """Return the plan for a policy; None where nothing is to be done: JAX has no AMP of its own that ``native`` could mean.

    It is another one once another library is imported: what was traced before knew nothing of that library's functions.
    """
    if not policy.active or preset(policy.preset).delegates:
        return None
    return _made(policy, libraries())


@lru_cache(maxsize=256)
def _made(policy: Policy, known: tuple[str, ...]) -> JaxPlan:
    return JaxPlan((policy, known), policy, policy.rules)


@lru_cache(maxsize=1)
def without_policy() -> JaxPlan:
    """Return the plan of a thread in which no policy is in force, but operations are reported."""
    policy = Policy(enabled=False)
    return JaxPlan((policy, "observed"), policy, policy.rules)


def how(op: str, policy: Policy, device: str) -> How:
    """Return the way in which a rule is carried out, for `unamp.explain`."""
    if "jax" not in vocabulary()[op].spellings:
        return How.ABSENT
    made = plan(policy)
    if made is None or vocabulary()[op].group == "cast":
        return How.NATIVE
    rule = made.rules[op]
    if rule is Rule.LOW and emulates(op):
        return How.EMULATED
    return How.NATIVE if rule is Rule.UNTOUCHED else How.INTERCEPTED
