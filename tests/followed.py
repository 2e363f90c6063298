"""The way of a call through files of Python.

docs/architecture.md follows one `add` from file to file; this follows it too.
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
    """The files in the table of a section, in order."""
    _, _, below = ARCHITECTURE.read_text("utf-8").partition(f"\n### {section}\n")
    assert below, section
    return re.findall(
        r"^\| `(\S+)` \|", below.partition("\n## ")[0].partition("\n### ")[0], re.MULTILINE
    )


def passed(call: Callable[[], Any]) -> list[str]:
    """The files of ours that Python passes through in a call, in the order of the first time."""
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

    What is made the first time is made by a call before.
    """
    with unamp.autocast(dtype="bfloat16", allow=["add"]):
        low = x + x
        files = passed(lambda: x + x)
    assert "bfloat16" in str(low.dtype).lower()
    return files


def changes_of_file(run: Callable[[], object]) -> int:
    """Return the number of times that a call goes from one file of Python to another and back.

    What it calls counts, too.
    """
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
