"""From a policy to a plan: what its rules come to in JAX, for primitives, composite operations and layers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cached_property, lru_cache, partial

from unamp.adapter import How
from unamp.adapter.observing import traced
from unamp.adapter.plans import BasePlan, how_by_calls, is_listed, with_synonyms
from unamp.policy import Policy, Rule
from unamp.presets import preset
from unamp.vocabulary import vocabulary
from unamp_jax.composites import emulates
from unamp_jax.facts import facts
from unamp_jax.spellings import libraries, primitives
from unamp_jax.state import DTYPES, PrimitiveRule

__all__ = ["JaxPlan", "how", "plan"]

#: Groups that keep their meaning inside of a layer. (Moving its parameters about is a part of the layer.)
_UNCHANGED = frozenset({"creation", "random", "cast", "comparison"})


class JaxPlan(BasePlan):
    """A policy made ready for JAX; see `unamp_jax.state.Plan`.

    JAX's caches tell traces apart by plans. Those of one policy are equal, however often they are made again: what was traced
    for a policy is found as long as JAX remembers it.

    Args:
        policy: the policy.
        rules: the rules for operations, before synonyms.
        key: tells what the plan is made of, beside the policy.
        reporting: whether all operations are reported.

    Attributes:
        low: the policy's low dtype.
    """

    def __init__(
        self, policy: Policy, rules: Mapping[str, Rule], *, key: tuple[Hashable, ...] = (), reporting: bool = False
    ) -> None:
        super().__init__(policy, with_synonyms(policy, rules, facts().synonyms), reporting=reporting)
        self.low = DTYPES[policy.dtype]
        self._parts = key
        self._key = (policy, reporting, *key)
        self._hash = hash(self._key)
        self._within: dict[tuple[str, Rule, bool], JaxPlan] = {}

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, JaxPlan) and self._hash == other._hash and self._key == other._key)

    def follows_parts(self, op: str, path: str) -> bool:
        """Return whether the parts of an operation follow their own rules, and it has none."""
        known = facts()
        if op in known.transparent or path in known.transparent:
            return not is_listed(self.policy, op)
        denied = self.policy.deny
        return op in known.divisible and op not in denied and any(part in denied for part in vocabulary()[op].parts)

    @cached_property
    def primitives(self) -> Mapping[str, PrimitiveRule]:
        """The rules for primitives, by name; what is not here is left alone."""
        return {name: (op, self.rules[op], traced(op)) for name, op in primitives().items() if name not in facts().left}

    @cached_property
    def observed(self) -> JaxPlan:
        """The same plan once more: what was traced for it reports."""
        return JaxPlan(self.policy, self.rules, key=(*self._parts, "observed"), reporting=True)

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
            self._within[key] = JaxPlan(self.policy, rules, key=(*self._parts, key), reporting=self.reporting)
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
    return JaxPlan(policy, policy.rules, key=known)


def how(op: str, policy: Policy, device: str) -> How:
    """Return the way in which a rule is carried out, for `unamp.explain`."""
    if "jax" not in vocabulary()[op].spellings:
        return How.ABSENT
    made = plan(policy)
    return how_by_calls(op, None if made is None else made.rules, partial(emulates, op))
