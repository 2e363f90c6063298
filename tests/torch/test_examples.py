"""The examples of README.md and the guides that use PyTorch run as pasted."""

import re
from pathlib import Path

import pytest
from documents import ROOT, Example, examples


@pytest.mark.parametrize("example", examples("torch"), ids=str)
def test_example(example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some write files
    example.run()


def test_there_are_examples() -> None:
    assert examples("torch")


def test_the_table_of_a_trace_is_the_one_that_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = (e for e in examples("torch") if e.file.name == "README.md" and "trace.to_html()" in e.code)
    example.run()
    shown = re.search(r"^```\n(layer .*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert shown
    assert capsys.readouterr().out == shown[1]
    assert (tmp_path / "trace.html").stat().st_size > 3000
