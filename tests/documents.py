"""The examples in README.md and docs/, by the framework that they import: each is run in that framework's process.

A block of Python is an example. A block of text right below it is what it prints, to the letter.
"""

from __future__ import annotations

import io
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
#: What recipes are for, and nobody needs: an example is run where its package is installed.
OPTIONAL = ("lightning", "accelerate", "transformers")
FRAMEWORKS = ("torch", "paddle", "mindspore", "tensorflow", "keras")


class Example(NamedTuple):
    """A block of Python in a document, the line that it starts on, and what the document says that it prints."""

    file: Path
    line: int
    code: str
    prints: str | None = None

    def __str__(self) -> str:
        return f"{self.file.name} line {self.line}"

    def run(self) -> None:
        # Empty lines in front, so that a traceback names the document's own line.
        for name in OPTIONAL:
            if self._imports(name):
                pytest.importorskip(name)
        program = compile("\n" * (self.line - 1) + self.code, str(self.file), "exec")
        with redirect_stdout(io.StringIO()) as printed:
            exec(program, {"__name__": "example"})
        if self.prints is not None:
            assert _without_margin(printed.getvalue()) == _without_margin(self.prints)

    def frameworks(self) -> set[str]:
        return {name for name in FRAMEWORKS if self._imports(name)}

    def _imports(self, name: str) -> bool:
        return re.search(rf"^(import|from) {name}\b", self.code, re.MULTILINE) is not None


def _without_margin(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def every_example() -> list[Example]:
    found = []
    for file in FILES:
        text = file.read_text("utf-8")
        for block in re.finditer(r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", text, re.DOTALL | re.MULTILINE):
            found.append(Example(file, text[: block.start(1)].count("\n") + 1, block[1], block[2]))
    return found


def examples(*frameworks: str) -> list[Example]:
    """The examples that import just these frameworks (and may import fewer of them, but one)."""
    return [e for e in every_example() if e.frameworks() <= set(frameworks) and bool(e.frameworks()) == bool(frameworks)]


def every_command() -> list[tuple[Path, list[str]]]:
    """The command lines in the documents, each with its document, as a shell splits them: without comments, at every `&&`."""
    found = []
    for file in (*FILES, ROOT / "CONTRIBUTING.md"):
        for block in re.findall(r"^```bash\n(.*?)^```$", file.read_text("utf-8"), re.DOTALL | re.MULTILINE):
            for line in block.splitlines():
                words = shlex.split(line, comments=True)
                while "&&" in words:
                    found.append((file, words[: words.index("&&")]))
                    words = words[words.index("&&") + 1 :]
                if words:
                    found.append((file, words))
    return found
