"""Put a plan in force in the calling thread, and put back the one from before."""

from __future__ import annotations

from typing import Any

from unamp.policy import Policy
from unamp_jax import patches, plans
from unamp_jax.state import CONTEXT, Plan, thread


class Activation:
    """`unamp.adapter.Realisation` for JAX.

    Args:
        policy: the policy; None where there is nothing to do.
    """

    __slots__ = ("_active", "policy")

    def __init__(self, policy: Policy | None) -> None:
        self.policy = policy
        self._active = policy is not None and plans.plan(policy) is not None

    def enter(self) -> object:
        """Put the policy's plan in force."""
        plan: Plan | None = None
        if self._active and self.policy is not None:
            patches.acquire()
            plan = plans.plan(self.policy)  # asked again, as a library may be imported by now
        if thread.sink is not None:
            plan = Plan.without_policy(reporting=True) if plan is None else plan.observed
        context = CONTEXT(plan)
        context.__enter__()
        return context

    def exit(self, token: Any) -> None:
        token.__exit__(None, None, None)
        if self._active:
            patches.release()
