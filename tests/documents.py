"""The examples in README.md and docs/, by the framework that they import.

Each runs in that framework's process. A block of Python is an example. A block of text right below
it is its exact output.
"""

from __future__ import annotations

import io
import re
import shlex
import sys
from contextlib import redirect_stdout
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import unamp

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "docs" / "examples"
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
#: Packages of recipes, which are optional: an example runs only where its package is installed.
OPTIONAL = ("lightning", "accelerate", "transformers")
sys.path.insert(0, str(EXAMPLES))  # the library that guides import
FRAMEWORKS = ("torch", "paddle", "mindspore", "tensorflow", "jax", "keras")


class Example(NamedTuple):
    """A block of Python in a document, with its first line and its output in the document."""

    file: Path
    line: int
    code: str
    prints: str | None = None

    def __str__(self) -> str:
        return f"{self.file.name} line {self.line}"

    def run(self) -> None:
        # Empty lines come first, so that a traceback has the document's own line numbers.
        for name in OPTIONAL:
            if self._imports(name):
                pytest.importorskip(name)
        program = compile("\n" * (self.line - 1) + self.code, str(self.file), "exec")
        names: dict[str, Any] = {"__name__": "example"}
        with redirect_stdout(io.StringIO()) as printed:
            exec(program, names)
            for name in [name for name in names if name.startswith("test_")]:
                # called with the fixtures of unamp's plugin
                names[name](
                    **{
                        each: getattr(unamp.testing, each)
                        for each in signature(names[name]).parameters
                    }
                )
        for op in [each.name for each in unamp.vocabulary().values() if each.is_added]:
            # the next example registers its own operations
            unamp.vocabulary().remove(op)
        if self.prints is not None:
            assert _without_margin(printed.getvalue()) == _without_margin(self.prints)

    def excerpt(self) -> tuple[Path, list[str]] | None:
        """The file that the block quotes, and the parts of it; None for a block of its own."""
        head, _, rest = self.code.partition("\n")
        if not head.startswith("# examples/"):
            return None
        return EXAMPLES.parent / head.removeprefix("# "), re.split(r"\n{2,}(?=\S)", rest.strip())

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
        for block in re.finditer(
            r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", text, re.DOTALL | re.MULTILINE
        ):
            found.append(Example(file, text[: block.start(1)].count("\n") + 1, block[1], block[2]))
    return found


def examples(*frameworks: str) -> list[Example]:
    """Return the examples that import at least one of these frameworks, and no other framework.

    Without arguments, return the examples that import no framework. Excerpts run as files instead.
    """
    found = [e for e in every_example() if not e.excerpt()]
    return [
        e
        for e in found
        if e.frameworks() <= set(frameworks) and bool(e.frameworks()) == bool(frameworks)
    ]


def every_command() -> list[tuple[Path, list[str]]]:
    """Return the command lines in the documents, each with its document.

    They are split as by a shell: without comments, at every `&&`.
    """
    found = []
    for file in (*FILES, ROOT / "CONTRIBUTING.md"):
        for block in re.findall(
            r"^```bash\n(.*?)^```$", file.read_text("utf-8"), re.DOTALL | re.MULTILINE
        ):
            for line in block.splitlines():
                words = shlex.split(line, comments=True)
                while "&&" in words:
                    found.append((file, words[: words.index("&&")]))
                    words = words[words.index("&&") + 1 :]
                if words:
                    found.append((file, words))
    return found


def conventions(framework: str) -> dict[str, str]:
    """Return the column of a framework in docs/moving.md's table of its layers' conventions."""
    text = (ROOT / "docs" / "moving.md").read_text("utf-8")
    _, _, table = text.partition("## What differs without a word")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.split("\n## ")[0].splitlines()
        if line[:1] == "|"
    ]
    column = rows[0].index(framework)
    return {row[0]: row[column] for row in rows[2:]}


#: The names that examples import for a folder's framework, where they differ
#: from the folder's name.
NAMES = {"tensorflow": ("tensorflow", "keras")}


def test_example(promise: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some examples write files
    promise.run()


def _of_a_folder(framework: str) -> list[Any]:
    found = examples(*NAMES.get(framework, (framework,)))
    assert found
    return [pytest.param(example, id=str(example)) for example in found]


test_example.promises = _of_a_folder  # type: ignore[attr-defined]  # see `pytest_generate_tests` in conftest.py
