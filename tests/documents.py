"""The examples in README.md and docs/, by the framework that they import: each is run in that framework's process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FRAMEWORKS = ("torch", "paddle", "mindspore", "tensorflow", "keras")


class Example(NamedTuple):
    """A block of Python in a document, and the line that it starts on."""

    file: Path
    line: int
    code: str

    def __str__(self) -> str:
        return f"{self.file.name} line {self.line}"

    def run(self) -> None:
        # Empty lines in front, so that a traceback names the document's own line.
        exec(compile("\n" * (self.line - 1) + self.code, str(self.file), "exec"), {"__name__": "example"})

    def frameworks(self) -> set[str]:
        return {name for name in FRAMEWORKS if re.search(rf"^(import|from) {name}\b", self.code, re.MULTILINE)}


def every_example() -> list[Example]:
    found = []
    for file in FILES:
        text = file.read_text("utf-8")
        for block in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            found.append(Example(file, text[: block.start(1)].count("\n") + 1, block[1]))
    return found


def examples(*frameworks: str) -> list[Example]:
    """The examples that import just these frameworks (and may import fewer of them, but one)."""
    return [e for e in every_example() if e.frameworks() <= set(frameworks) and bool(e.frameworks()) == bool(frameworks)]
