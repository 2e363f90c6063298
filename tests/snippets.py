"""Read the corpora: snippets of real use, each with the text that it must become.

The beginning of a line tells which texts have it: two blanks, all; `-`, the original; `u`, plain
unamp; `d`, the dialects; `+`, both of the new ones. `! kind: words` is a finding, with words of its
message; `!u` and `!d` are findings of one target. Moves are not listed: the text shows them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

__all__ = ["FRAMEWORKS", "Snippet", "corpus", "every_snippet"]

HERE = Path(__file__).parent / "migrate" / "corpus"
FRAMEWORKS = ("torch", "paddle", "mindspore", "tensorflow", "apex", "jax")


class Snippet(NamedTuple):
    name: str
    texts: dict[str, str]
    findings: dict[str, list[tuple[str, str]]]

    @property
    def before(self) -> str:
        return self.texts["-"]

    def __str__(self) -> str:
        return self.name


def corpus(framework: str) -> list[Snippet]:
    head, *parts = re.split(
        r"^== (.*)\n", (HERE / f"{framework}.txt").read_text("utf-8"), flags=re.MULTILINE
    )
    assert head.strip()
    return [_snippet(name, body) for name, body in zip(parts[::2], parts[1::2], strict=True)]


def every_snippet() -> list[Snippet]:
    return [snippet for framework in FRAMEWORKS for snippet in corpus(framework)]


def _snippet(name: str, body: str) -> Snippet:
    texts = {"-": "", "u": "", "d": ""}
    findings: dict[str, list[tuple[str, str]]] = {"u": [], "d": []}
    for line in body.rstrip("\n").split("\n"):
        if found := re.fullmatch(r"!([ud]?) ([a-z ]+): (.*)", line):
            for target in found[1] or "ud":
                findings[target].append((found[2], found[3]))
            continue
        assert line[:2] in ("  ", "- ", "u ", "d ", "+ ", ""), f"{name}: {line}"
        for target in {" ": "-ud", "+": "ud", "": "-ud"}.get(line[:1], line[:1]):
            texts[target] += f"{line[2:]}\n"
    return Snippet(name, texts, findings)
