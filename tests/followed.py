"""How a call goes through files of Python, for tests of paths that are to be read from top to bottom."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType


def changes_of_file(run: Callable[[], object]) -> int:
    """How often a call and all that it calls goes from one file of Python to another, there and back."""
    changes, files = 0, [__file__]

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal changes
        if event == "call":
            files.append(frame.f_code.co_filename)
            changes += len(files) > 3 and files[-1] != files[-2]
        elif event == "return" and len(files) > 1:
            left = files.pop()
            changes += len(files) > 2 and files[-1] != left

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return changes
