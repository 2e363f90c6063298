"""Putting a plan in force in the calling thread, and putting back what was in force before."""

from __future__ import annotations

from typing import Any

from unamp_jax import patches
from unamp_jax.plans import without_policy
from unamp_jax.state import CONTEXT, Plan, thread

__all__ = ["Activation"]


class Activation:
    """`unamp.adapter.Realisation` for JAX.

    Args:
        plan: the plan; None where there is nothing to do.
    """

    __slots__ = ("plan",)

    def __init__(self, plan: Plan | None) -> None:
        self.plan = plan

    def enter(self) -> object:
        """Put the plan in force."""
        plan = self.plan
        if plan is not None:
            patches.acquire()
        if thread.sink is not None:
            plan = without_policy() if plan is None else plan.observed
        context = CONTEXT(plan)
        context.__enter__()
        return context

    def exit(self, token: Any) -> None:
        """Put back what `enter` found."""
        token.__exit__(None, None, None)
        if self.plan is not None:
            patches.release()
