"""Put a plan in force in the calling thread, and take it back."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import paddle

from unamp.adapter.state import suspended
from unamp_paddle import patches
from unamp_paddle.native import switched_off
from unamp_paddle.plans import Plan
from unamp_paddle.programs import check_ir
from unamp_paddle.state import expects_gpu, thread


class Activation:
    """`unamp.adapter.Realisation` for PaddlePaddle."""

    __slots__ = ("plan",)

    def __init__(self, plan: Plan | None) -> None:
        self.plan = plan

    def enter(self) -> object:
        """Put the plan in force.

        Raises:
            NotExpressible: where programs are built that no policy reaches.
        """
        plan, outer = self.plan, thread.plan
        if plan is None:
            # In the compilers' keys: a library's default region, traced outside, must not run here.
            patches.compilers.acquire()
            # Low tensors may come from the outer region, and the CPU has no kernels for them.
            if outer is not None:
                thread.plan = Plan.without_policy(reporting=thread.sink is not None)
            return outer, switched_off()
        check_ir()
        if plan.delegated:
            native: AbstractContextManager[None] | None = _entered(plan)
            thread.plan = None
            return outer, native
        beside = plan.natively and _paddles_own_takes_part()
        if plan.natively and not beside:
            plan = plan.without_native
        patches.acquire(plan)  # before anything changes: a patch that cannot be applied raises
        native = _entered(plan) if beside else switched_off()
        thread.plan = plan if thread.sink is None else plan.observed
        return outer, native

    def exit(self, token: Any) -> None:
        outer, native = token
        thread.plan = outer
        if native is not None:
            native.__exit__(None, None, None)
        if self.plan is None:
            patches.compilers.release()
        elif not self.plan.delegated:
            patches.release()


def _paddles_own_takes_part() -> bool:
    """Return whether Paddle's own region can carry out a part of the policy.

    It has no effect on the CPU. It casts in C++, where a trace would not see the operations.
    """
    return thread.sink is None and expects_gpu()


def _entered(plan: Plan) -> AbstractContextManager[None]:
    """Enter Paddle's own region for a policy, which it carries out on a GPU without unamp.

    No plan is in force meanwhile: under one, `paddle.amp.auto_cast` opens a region of unamp's.
    """
    policy = plan.policy
    native: AbstractContextManager[None] = paddle.amp.auto_cast(
        True,
        level=policy.level if policy.level != "O3" else "O2",
        dtype=policy.dtype,
        use_promote=policy.promote,
    )
    with suspended(thread):
        native.__enter__()
    return native
