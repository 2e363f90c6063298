"""The files of Python that a call passes through.

docs/architecture.md follows one `add` from file to file; the tests compare that with a real call.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from documents import ROOT

import unamp

ARCHITECTURE = ROOT / "docs" / "architecture.md"
_OURS = {str(ROOT / home): home for home in ("unamp", "adapters")}


def told(section: str) -> list[str]:
    """Return the files in the table of a section, in order."""
    _, _, below = ARCHITECTURE.read_text("utf-8").partition(f"\n### {section}\n")
    assert below, section
    return re.findall(
        r"^\| `(\S+)` \|", below.partition("\n## ")[0].partition("\n### ")[0], re.MULTILINE
    )


def passed(call: Callable[[], Any]) -> list[str]:
    """Return the project's files that Python passes through in a call, in order of first use."""
    files: dict[str, None] = {}

    def note(frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and any(name.startswith(f"{home}/") for home in _OURS):
            files[name.removeprefix(f"{ROOT}/")] = None

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return list(files)


def added(x: Any) -> list[str]:
    """Return the files that `x + x` passes through under a changed rule.

    A call before it makes the objects that only a first call makes.
    """
    with unamp.autocast(dtype="bfloat16", allow=["add"]):
        low = x + x
        files = passed(lambda: x + x)
    assert "bfloat16" in str(low.dtype).lower()
    return files


def changes_of_file(run: Callable[[], object]) -> int:
    """Return the number of calls and returns from one Python file to another, inside `run`."""
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
