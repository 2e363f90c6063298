"""The state of a thread, which is a part of the key of every cache of traces that JAX has, and the protocol of a plan.

`CONTEXT` holds the plan in force, or None. What is traced under a plan is filed under it; what is traced while a plan is
suspended is filed under None: there is no flag beside the key that could disagree with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import jax
import numpy as np

from unamp import dtypes
from unamp.adapter.state import Dtypes, ThreadState
from unamp.adapter.state import Plan as AnyPlan
from unamp.policy import Rule

__all__ = ["CONTEXT", "DTYPES", "ELIGIBLE", "FLOAT32", "Array", "Plan", "PrimitiveRule", "thread"]

#: A name for readers: to a type checker it is `Any`.
Array: TypeAlias = jax.Array

#: NumPy's dtype objects, which JAX's arrays have; each is the one object of its dtype.
DTYPES: Mapping[str, Any] = Dtypes(
    "jax", {name: np.dtype(getattr(jax.numpy, name)) for name in dtypes.ELIGIBLE if hasattr(jax.numpy, name)}
)
ELIGIBLE = frozenset(DTYPES.values())
FLOAT32 = DTYPES[dtypes.FLOAT32]

#: The plan in force in this thread.
CONTEXT: Any = jax.make_user_context(None)

#: The rule for a primitive: its operation, the rule, and whether it is reported.
PrimitiveRule: TypeAlias = "tuple[str, Rule, bool]"


class Plan(AnyPlan, Protocol):
    """A policy made ready for JAX, as those who carry out single calls see it; `plans` makes it."""

    @property
    def low(self) -> Any:
        """The policy's dtype."""

    @property
    def primitives(self) -> Mapping[str, PrimitiveRule]:
        """The rules for primitives, by name; what is not here is left alone."""

    @property
    def observed(self) -> Plan:
        """The same plan, with every operation reported."""

    def low_alone(self, dtype: str, /) -> Plan:
        """Return the plan under which everything is computed in a low dtype."""

    def within(self, op: str, rule: Rule, activated: bool = False, /) -> Plan:
        """Return the plan inside a layer that is one operation, whose parameters are not among its arguments.

        Args:
            op: the operation.
            rule: the rule for what the layer is made of.
            activated: whether a user chooses the layer's activation, which follows its own rule.
        """

    def follows_parts(self, op: str, path: str, /) -> bool:
        """Return whether the parts of an operation follow their own rules, and it has none."""

    def ban(self, op: str, /) -> str:
        """Return the text of the error for a banned operation."""


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
        CONTEXT(plan).__enter__()  # who sets it puts back what was there: nothing else leaves the context


thread = Thread()
