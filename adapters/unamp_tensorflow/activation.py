"""Put a plan in force in the calling thread, and put back the plan that was in force before."""

from __future__ import annotations

from typing import Any

from unamp_tensorflow import patches
from unamp_tensorflow.plans import TensorFlowPlan
from unamp_tensorflow.state import Plan, thread


class Activation:
    """`unamp.adapter.Realisation` for TensorFlow.

    Args:
        plan: the plan; None where there is nothing to do.
    """

    __slots__ = ("plan",)

    def __init__(self, plan: Plan | None) -> None:
        self.plan = plan

    def enter(self) -> object:
        plan, outer = self.plan, thread.plan
        if plan is None:
            # In the compiler's keys: a library's default region, traced outside, must not run here.
            patches.compilers.acquire()
        else:
            patches.acquire(plan)
        if thread.sink is not None:
            plan = TensorFlowPlan.without_policy(reporting=True) if plan is None else plan.observed
        thread.plan = plan
        return outer

    def exit(self, token: Any) -> None:
        thread.plan = token
        if self.plan is None:
            patches.compilers.release()
        else:
            patches.release()
