"""Regions and functions whose bytecode MindSpore captures: `mindspore.jit` with ``capture_mode="bytecode"``.

No strategy reaches what is captured, and the functions that a region's body calls are captured too. So nothing is captured
while a region is open: the code runs as it is written, under the policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore
from mindspore import _c_expression

from unamp.adapter import major_minor
from unamp.adapter.replacing import CodePatch
from unamp_mindspore.state import thread

if major_minor(mindspore.__version__) < (2, 9):
    from mindspore.common._pijit_context import PIJitCaptureContext
else:
    from mindspore.graph._utils.pijit_context import PIJitCaptureContext

__all__ = ["capture_hooks", "capture_needed", "go_on", "pause"]

#: Stop capturing in this thread, and go on with it.
pause, go_on = _c_expression.jit_mode_pi_disable, _c_expression.jit_mode_pi_enable


def _capture_begins(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `PIJitCaptureContext.__enter__`, so that a thread knows that it captures, and captures nothing in a region."""

    def __enter__(self: Any) -> None:  # noqa: N807 - it is one
        if thread.plan is None:
            original(self)
        thread.captures += 1

    return __enter__


def _capture_ends(original: Callable[..., Any]) -> Callable[..., Any]:
    def __exit__(self: Any, *error: Any) -> None:  # noqa: N807 - it is one
        original(self, *error)
        thread.captures -= 1

    return __exit__


def capture_hooks() -> tuple[CodePatch, ...]:
    """Return the functions of MindSpore that begin and end capturing."""
    begins, ends = PIJitCaptureContext.__enter__, PIJitCaptureContext.__exit__
    return CodePatch(begins, _capture_begins), CodePatch(ends, _capture_ends)


def capture_needed() -> list[tuple[Any, str]]:
    """Return what must be there, as objects and the names of attributes."""
    modes = [(_c_expression, "jit_mode_pi_disable"), (_c_expression, "jit_mode_pi_enable")]
    return [(PIJitCaptureContext, "__enter__"), (PIJitCaptureContext, "__exit__"), *modes]
