"""The thread's state, and the plan in force, which is a part of the key of JAX's trace caches.

`CONTEXT` holds the plan in force, or None. JAX files a program that it traces under that plan, and
under None while the plan is suspended: there is no flag beside the key that could disagree with it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cached_property
from typing import Any, TypeAlias

import jax
import numpy as np

from unamp import dtypes
from unamp.adapter.observing import traced
from unamp.adapter.plans import BasePlan, is_listed, with_synonyms
from unamp.adapter.state import Dtypes, ThreadState
from unamp.policy import Policy, Rule
from unamp.vocabulary import vocabulary
from unamp_jax.facts import facts
from unamp_jax.spellings import primitives

#: JAX's arrays, and the tracers that stand for them.
Array: TypeAlias = jax.Array

#: Arrays and other values in tuples, lists, dictionaries and any other container that JAX opens,
#: however deep, or a single value.
PyTree = Any

#: NumPy's dtype objects, which JAX's arrays have; each is the one object of its dtype.
DTYPES: Mapping[str, jax.numpy.dtype] = Dtypes(
    "jax",
    {
        name: np.dtype(getattr(jax.numpy, name))
        for name in dtypes.ELIGIBLE
        if hasattr(jax.numpy, name)
    },
)
ELIGIBLE = frozenset(DTYPES.values())
FLOAT32 = DTYPES[dtypes.FLOAT32]

#: The plan in force in this thread.
CONTEXT = jax.make_user_context(None)

#: The rule for a primitive: its operation, the rule, and whether it is reported.
PrimitiveRule: TypeAlias = "tuple[str, Rule, bool]"

#: Groups that keep their meaning inside of a layer. (Moving its parameters about
#: is a part of the layer.)
_UNCHANGED = frozenset({"creation", "random", "cast", "comparison"})


class Plan(BasePlan):
    """A policy made ready for JAX; `plans` makes it.

    JAX's caches tell traces apart by plans. Plans of one policy are equal, however often they are
    made again, so that JAX finds the programs that it has traced for the policy.

    Args:
        rules: the rules for operations, before synonyms.
        key: the values that the plan is made of, beside the policy.
    """

    def __init__(
        self,
        policy: Policy,
        rules: Mapping[str, Rule],
        *,
        key: tuple[Hashable, ...] = (),
        reporting: bool = False,
    ) -> None:
        super().__init__(
            policy, with_synonyms(policy, rules, facts().synonyms), reporting=reporting
        )
        self.low = DTYPES[policy.dtype]
        self._parts = key
        self._key = (policy, reporting, *key)
        self._hash = hash(self._key)  # once: it is asked for with each look into a cache
        self._within: dict[tuple[str, Rule, bool], Plan] = {}

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Plan) and self._hash == other._hash and self._key == other._key
        )

    def follows_parts(self, op: str, path: str) -> bool:
        """Return whether the parts of an operation follow their own rules, and it has none."""
        known = facts()
        if op in known.transparent or path in known.transparent:
            return not is_listed(self.policy, op)
        denied = self.policy.deny
        return (
            op in known.divisible
            and op not in denied
            and any(part in denied for part in vocabulary()[op].parts)
        )

    @cached_property
    def primitives(self) -> Mapping[str, PrimitiveRule]:
        """The rules for primitives, by name; other primitives are left alone."""
        return {
            name: (op, self.rules[op], traced(op))
            for name, op in primitives().items()
            if name not in facts().left
        }

    @cached_property
    def observed(self) -> Plan:
        """The same plan under another key, so that programs traced for it report operations."""
        return Plan(self.policy, self.rules, key=(*self._parts, "observed"), reporting=True)

    def within(self, op: str, rule: Rule, activated: bool = False) -> Plan:
        """Return the plan inside a layer that is one operation.

        The layer's parameters are not among its arguments.

        Args:
            rule: the rule for the layer's parts.
            activated: whether a user chooses the layer's activation, which follows its own rule.
        """
        key = op, rule, activated
        if key not in self._within:
            parts = facts().parts.get(op) if activated else None
            rules = {
                name: self.rules[name] if parts is not None and name not in parts
                else Rule.UNTOUCHED if known.group in _UNCHANGED else rule
                for name, known in vocabulary().items()
                if not known.is_added
            }  # fmt: skip
            self._within[key] = Plan(
                self.policy, rules, key=(*self._parts, key), reporting=self.reporting
            )
        return self._within[key]


class Thread(ThreadState[Plan]):
    """One thread's state; see `unamp.adapter.state.ThreadState`. Its plan is in `CONTEXT`.

    Attributes:
        made_under: the plan that is suspended while a layer is made, or None.
    """

    made_under: Plan | None = None

    @property
    def plan(self) -> Plan | None:
        """The plan in force, or None."""
        found: Plan | None = CONTEXT.value
        return found

    @plan.setter
    def plan(self, plan: Plan | None) -> None:
        # The context is never left: whoever sets the plan sets the one from before again.
        CONTEXT(plan).__enter__()


thread = Thread()
