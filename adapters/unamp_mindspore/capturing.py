"""Switch `mindspore.jit` with ``capture_mode="bytecode"`` off while a region is open.

MindSpore captures the bytecode of functions, and of the functions that they call. No policy reaches
a captured graph. So inside a region the code runs as it is written, under the policy.
"""

from __future__ import annotations

from mindspore import _c_expression

from unamp._function_types import Function
from unamp.adapter.replacing import CodePatch, as_replacement
from unamp_mindspore.moved import PIJitCaptureContext
from unamp_mindspore.state import thread

#: Stop capturing in this thread, and capture again.
pause, go_on = _c_expression.jit_mode_pi_disable, _c_expression.jit_mode_pi_enable


@as_replacement
def _capture_begins(original: Function, self: PIJitCaptureContext) -> None:
    """Wrap `PIJitCaptureContext.__enter__`, so that it captures nothing in a region."""
    if thread.plan is None:
        original(self)
    thread.captures += 1


@as_replacement
def _capture_ends(original: Function, self: PIJitCaptureContext, *error: object) -> None:
    original(self, *error)
    thread.captures -= 1


#: The patches of MindSpore's functions that begin and end capturing.
CAPTURE_HOOKS = (
    CodePatch(PIJitCaptureContext.__enter__, _capture_begins),
    CodePatch(PIJitCaptureContext.__exit__, _capture_ends),
)
