"""The examples in README.md and docs/, by the framework that they import: each is run in that framework's process."""

from __future__ import annotations

import re
import sys
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import unamp

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "docs" / "examples"
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
sys.path.insert(0, str(EXAMPLES))  # the library that guides import
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
        names: dict[str, Any] = {"__name__": "example"}
        exec(compile("\n" * (self.line - 1) + self.code, str(self.file), "exec"), names)
        for name in [name for name in names if name.startswith("test_")]:  # with the fixtures that unamp's plugin offers
            names[name](**{each: getattr(unamp.testing, each) for each in signature(names[name]).parameters})

    def excerpt(self) -> tuple[Path, list[str]] | None:
        """The file that a block is from, and the parts of it; None for a block of its own."""
        head, _, rest = self.code.partition("\n")
        if not head.startswith("# examples/"):
            return None
        return EXAMPLES.parent / head.removeprefix("# "), re.split(r"\n{2,}(?=\S)", rest.strip())

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
    """The examples that import just these frameworks (and may import fewer of them, but one). Excerpts are run as files."""
    found = [e for e in every_example() if not e.excerpt()]
    return [e for e in found if e.frameworks() <= set(frameworks) and bool(e.frameworks()) == bool(frameworks)]


def conventions(framework: str) -> dict[str, str]:
    """What docs/moving.md says that a framework's layers do: the column of its table."""
    text = (ROOT / "docs" / "moving.md").read_text("utf-8")
    _, _, table = text.partition("## What differs without a word")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.split("\n## ")[0].splitlines()
        if line[:1] == "|"
    ]
    column = rows[0].index(framework)
    return {row[0]: row[column] for row in rows[2:]}
