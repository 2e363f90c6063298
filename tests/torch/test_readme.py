"""The examples of README.md that use PyTorch run as pasted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
TEXT = README.read_text("utf-8")
BLOCKS = [
    block for block in re.finditer(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE) if "import torch\n" in block[1]
]


@pytest.mark.parametrize("block", BLOCKS, ids=[f"line {TEXT[: block.start()].count(chr(10)) + 2}" for block in BLOCKS])
def test_example(block: re.Match[str]) -> None:
    # Empty lines in front, so that a traceback names the README's own line.
    lines_before = TEXT[: block.start(1)].count("\n")
    exec(compile("\n" * lines_before + block[1], str(README), "exec"), {"__name__": "readme"})


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 5
