"""Regions and functions whose bytecode MindSpore captures: `mindspore.jit` with ``capture_mode="bytecode"``.

No strategy reaches what is captured, and the functions that a region's body calls are captured too. So nothing is captured
while a region is open: the code runs as it is written, under the policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mindspore import _c_expression

from unamp.adapter.replacing import CodePatch
from unamp_mindspore.moved import PIJitCaptureContext
from unamp_mindspore.state import thread

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
