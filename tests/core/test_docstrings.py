"""The first noun of each docstring is the thing that it documents, and no pronoun.

Words with a meaning of this project's own stand in the glossary.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("unamp", "adapters", "conformance", "benchmarks", "docs", "release")
SOURCES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))

PRONOUNS = "what|it|them|those|whatever|whoever"
NAMELESS = re.compile(
    rf"(What|Whether|Who|Whose|Which|It|They|Those|This)\b"
    rf"|[A-Z]\w+ ({PRONOUNS})\b"
    rf"|(Return|Yield|Give|Print) (this|that|which|who|whose|where|how)\b"
    rf"|(Be|Need) "
)

#: Words with a meaning of their own here, in identifiers and docstrings.
OURS = (
    "composite", "explicit cast", "feed", "held", "observer", "place", "shadow", "sink", "stand in",
    "suspend", "token", "transparent", "unit",
)  # fmt: skip


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            said = ast.get_docstring(node)
            if said:
                yield getattr(node, "lineno", 1), said


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_first_noun_is_the_thing(path: Path) -> None:
    assert [
        (line, said) for line, said in docstrings(path.read_text("utf-8")) if NAMELESS.match(said)
    ] == []


@pytest.mark.parametrize(
    ("said", "nameless"),
    [
        ("Return what a file says.", True),
        ("Need them from now on.", True),
        ("Be the replacement from now on.", True),
        ("Which precision explains these numbers?", True),
        ("Return how many casts a rule takes.", True),
        ("Return whether a policy changes anything.", False),
        ("Return the number of casts that a rule takes.", False),
        ("Layers whose code alone is wanted.", False),
    ],
)
def test_a_pronoun_is_noticed(said: str, nameless: bool) -> None:
    assert [bool(NAMELESS.match(found)) for _, found in docstrings(f'"""{said}"""')] == [nameless]


@pytest.mark.parametrize("word", OURS)
def test_a_word_of_ours_stands_in_the_glossary(word: str) -> None:
    glossary = (ROOT / "docs/glossary.md").read_text("utf-8")
    assert re.search(rf"^\| {word} \| \S", glossary, re.MULTILINE)
