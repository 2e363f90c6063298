"""The examples of README.md and the guides that use PyTorch run as pasted."""

from pathlib import Path

import pytest
import torch
from documents import Example, examples
from followed import added, passed, told
from unamp_torch.compiled import library

import unamp


@pytest.mark.parametrize("example", examples("torch"), ids=str)
def test_example(example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some write files
    example.run()


def test_there_are_examples() -> None:
    assert examples("torch")


def test_the_first_example_prints_its_trace_and_another_writes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = next(e for e in examples("torch") if e.file.name == "README.md")
    assert first.prints is not None
    assert "bfloat16" in first.prints
    monkeypatch.chdir(tmp_path)
    next(e for e in examples("torch") if "trace.to_html()" in e.code).run()
    assert (tmp_path / "trace.html").stat().st_size > 3000


def test_the_architecture_follows_an_add() -> None:
    assert added(torch.ones(4)) == (told("PyTorch") if library is None else [])


def test_the_architecture_follows_a_region() -> None:
    never_asked_for = {"dtype": "bfloat16", "allow": ["add", "log1p", "atan"]}
    made = passed(lambda: unamp.autocast(**never_asked_for))
    assert made == told("In the core: the region is made")
    opened = passed(unamp.autocast(**never_asked_for).__enter__)
    unamp.regions.close_down_to(0)
    assert set(told("In the core: the region opens")) <= set(opened)
