"""The documents: every example belongs to one framework's process, and links lead somewhere."""

from __future__ import annotations

import re

import pytest
from documents import FILES, FRAMEWORKS, ROOT, Example, every_example, examples

TABLES = sorted((ROOT / "docs" / "tables").glob("*.md"))


@pytest.mark.parametrize("example", every_example(), ids=str)
def test_an_example_runs_in_one_frameworks_process(example: Example) -> None:
    assert len(example.frameworks() - {"keras"}) <= 1


@pytest.mark.parametrize("example", examples(), ids=str)
def test_example_without_a_framework(example: Example) -> None:
    example.run()


@pytest.mark.parametrize("example", [e for e in every_example() if e.excerpt()], ids=str)
def test_an_excerpt_is_what_the_file_has(example: Example) -> None:
    file, parts = example.excerpt() or (None, [])
    assert file is not None
    assert parts
    text = file.read_text("utf-8")
    assert [part for part in parts if f"\n{part}\n" not in text] == []


@pytest.mark.parametrize("file", [*FILES, ROOT / "CONTRIBUTING.md"], ids=lambda file: file.name)
def test_links_lead_somewhere(file) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", file.read_text("utf-8")):
        assert target.startswith("https://") or (file.parent / target).exists(), target


def test_every_framework_has_its_tables() -> None:
    assert [file.name for file in TABLES] == ["capabilities.md", "gaps.md", "presets.md", "vocabulary.md"]
    gaps = (ROOT / "docs" / "tables" / "gaps.md").read_text("utf-8")
    assert all(f"\n## {framework} " in gaps for framework in FRAMEWORKS[:4])
