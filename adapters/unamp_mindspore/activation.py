"""Put a plan in force in the calling thread, and take it back."""

from __future__ import annotations

from typing import Any

from unamp_mindspore import patches
from unamp_mindspore.capturing import go_on, pause
from unamp_mindspore.casting import recording
from unamp_mindspore.compiling import check_not_traced
from unamp_mindspore.own_amp import switch_off, switch_on
from unamp_mindspore.plans import Plan
from unamp_mindspore.state import thread


class Activation:
    """`unamp.adapter.Realisation` for MindSpore."""

    __slots__ = ("plan",)

    def __init__(self, plan: Plan | None) -> None:
        self.plan = plan

    def enter(self) -> object:
        """Put the plan in force.

        Raises:
            NotExpressible: where MindSpore captures a graph from a trace.
        """
        plan, outer = self.plan, thread.plan
        if plan is None:
            # Low tensors may come from the outer region, and the CPU has no kernels for them.
            if outer is not None:
                thread.plan = Plan.without_policy(reporting=thread.sink is not None)
            return outer, switch_off()
        check_not_traced()
        if thread.captures:
            pause()  # first: the code that applies the patches would be captured, too
        try:
            patches.acquire()
        except BaseException:
            if thread.captures and outer is None:
                go_on()
            raise
        masked = switch_off()
        thread.plan = plan if thread.sink is None else plan.observed
        return outer, masked

    def exit(self, token: Any) -> None:
        thread.plan, masked = token
        if masked:
            switch_on()
        if self.plan is not None:
            if recording():  # its backward pass is still to come, and will meet low gradients
                thread.recorded = True
            patches.release()
            if thread.captures and thread.plan is None:
                go_on()
