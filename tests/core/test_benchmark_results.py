"""Results of benchmarks: kept, read again, compared and drawn. What they measure is no test's business."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import pictures, results  # noqa: E402
from benchmarks.measure import Outcome, Standing  # noqa: E402


def outcome(name: str, ratio: float, noise: float = 0.1, goal: float | None = 1.0) -> Outcome:
    around = (ratio - noise, ratio + noise)
    return Outcome(name, ratio * 1e-6, ratio, around, around, goal)


def standing(*ratios: float, title: str = "an <add> & more") -> Standing:
    return Standing(title, 10, (outcome("by hand", 1.0, 0.0, None), *(outcome(str(n), r) for n, r in enumerate(ratios))))


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    found = [standing(1.2), standing(0.5, 3.0, title="another")]
    results.write(tmp_path / "run.json", {"cpu_model_name": "one"}, found)
    assert results.read(tmp_path / "run.json") == ({"cpu_model_name": "one"}, found)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"machine": {}, "comparisons": [{"title": "x"}]}'])
def test_a_file_of_something_else_is_an_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(ValueError, match=r"other.json is no file of results that `python -m benchmarks --json FILE` wrote"):
        results.read(tmp_path / "other.json")


def test_only_what_is_beyond_the_noise_is_a_change() -> None:
    found = list(results.changes([standing(1.0, 1.0, 1.0)], [standing(1.15, 1.25, 0.75, 5.0)]))
    assert [(change.name, change.verdict) for change in found] == [("0", ""), ("1", "slower"), ("2", "faster")]


@pytest.mark.parametrize(("after", "status"), [(1.05, 0), (2.0, 1)])
def test_the_command_compares(after: float, status: int, tmp_path: Path) -> None:
    for name, ratio in (("old", 1.0), ("new", after)):
        results.write(tmp_path / f"{name}.json", {"cpu_model_name": name}, [standing(ratio)])
    command = [sys.executable, "-m", "benchmarks", "compare", str(tmp_path / "old.json"), str(tmp_path / "new.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert f"{status} slower, 0 faster" in done.stdout
    assert "not the same cpu_model_name: old and new" in done.stdout


def test_pictures_are_whole_and_name_everything(tmp_path: Path) -> None:
    grown = Standing("growth: regions, nested", 5, tuple(outcome(str(size), size**1.5) for size in (1, 10, 1000)))
    written = pictures.write(tmp_path, [standing(0.9, 7.0), grown])
    assert [path.name for path in written] == ["ratios.svg", "growth-regions-nested.svg"]
    for path in written:
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
    assert "an &lt;add&gt; &amp; more: 1" in written[0].read_text()
    assert written[1].read_text().count("<circle") == 3


def test_the_pictures_of_the_documentation_are_those_of_its_results(tmp_path: Path) -> None:
    _, found = results.read(ROOT / "docs" / "performance" / "results.json")
    for path in pictures.write(tmp_path, found):
        assert path.read_text() == (ROOT / "docs" / "performance" / path.name).read_text(), path.name
