"""Results of benchmarks are kept, read again, compared and drawn.

No test checks what the benchmarks measure.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import pictures, results  # noqa: E402
from benchmarks.measure import Outcome, Standing  # noqa: E402
from benchmarks.memory import resident  # noqa: E402
from benchmarks.results import Run  # noqa: E402
from benchmarks.sections import SECTIONS, Section, framework_of  # noqa: E402
from benchmarks.selections import SELECTIONS, chosen  # noqa: E402


def outcome(name: str, ratio: float, noise: float = 0.1, goal: float | None = 1.0) -> Outcome:
    around = (ratio - noise, ratio + noise)
    return Outcome(name, ratio * 1e-6, ratio, around, around, goal)


def standing(*ratios: float, title: str = "an <add> & more") -> Standing:
    return Standing(
        title,
        10,
        (outcome("by hand", 1.0, 0.0, None), *(outcome(str(n), r) for n, r in enumerate(ratios))),
    )


MACHINE = {"cpu_model_name": "one", "cpu_count": 2, "date": "2026-11-23 03:00"}


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "benchmarks", *map(str, arguments)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    found = [
        standing(1.2),
        standing(0.5, 3.0, title="another"),
        replace(standing(2.0, title="large"), unit="bytes"),
    ]
    run = Run(MACHINE, "laptop", {"torch": {"MKL_CBWR": "AVX2"}}, {"regions": 3.5}, found)
    results.write(tmp_path / "run.json", run)
    assert results.read(tmp_path / "run.json") == run


def test_files_from_before_there_was_memory_are_read(tmp_path: Path) -> None:
    results.write(tmp_path / "run.json", Run(MACHINE, standings=[standing(1.2)]))
    data = json.loads((tmp_path / "run.json").read_text())
    for outcome in data["comparisons"][0]["outcomes"]:
        outcome["seconds"] = outcome.pop("median")
    for key in ("setting", "variables", "sections"):
        del data[key]
    del data["comparisons"][0]["unit"]
    (tmp_path / "old.json").write_text(json.dumps(data))
    assert results.read(tmp_path / "old.json") == Run(MACHINE, standings=[standing(1.2)])


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "nul", "[" * 100_000, '{"machine": {}, "comparisons": [{"title": "x"}]}'],
)
def test_a_file_of_something_else_is_an_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(
        ValueError,
        match=r"other.json is no file of results that `python -m benchmarks --json FILE` wrote",
    ):
        results.read(tmp_path / "other.json")


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("ratio", "fast", "'ratio' must be a number, 0 or more, not 'fast'"),
        ("ratio", math.nan, "'ratio' must be a number, 0 or more, not 'nan'"),
        ("median", -1, "'median' must be a number, 0 or more, not '-1'"),
        ("goal", True, "'goal' must be a number, 0 or more, not 'True'"),
        ("surely", [1.0], "'surely' must be two numbers, not [1.0]"),
        ("quartiles", {"1": 2}, "'quartiles' must be list, not \"{'1': 2}\""),
        ("name", None, "'name' must be str, not 'None'"),
    ],
)
def test_a_wrong_number_is_named(key: str, value: Any, says: str, tmp_path: Path) -> None:
    results.write(tmp_path / "run.json", Run(MACHINE, standings=[standing(1.2)]))
    data = json.loads((tmp_path / "run.json").read_text())
    data["comparisons"][0]["outcomes"][1][key] = value
    (tmp_path / "run.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"run\.json is no file of results") as caught:
        results.read(tmp_path / "run.json")
    assert str(caught.value).endswith(says)


def test_only_what_is_beyond_the_noise_is_a_change() -> None:
    found = list(results.changes([standing(1.0, 1.0, 1.0)], [standing(1.15, 1.3, 0.7, 5.0)]))
    assert [(change.name, change.verdict) for change in found] == [
        ("0", ""),
        ("1", "slower"),
        ("2", "faster"),
    ]


@pytest.mark.parametrize(
    ("after", "verdict"), [(1.04, ""), (0.96, ""), (1.07, "slower"), (0.93, "faster")]
)
def test_what_two_processes_differ_by_is_noise(after: float, verdict: str) -> None:
    before, now = (
        Standing("add", 9, (outcome("by hand", 1.0), outcome("unamp", ratio, 0.005)))
        for ratio in (1.0, after)
    )
    (change,) = results.changes([before], [now])
    assert change.verdict == verdict


def test_ratios_to_another_baseline_are_not_compared() -> None:
    other = replace(standing(2.0), outcomes=(outcome("by another hand", 1.0), outcome("0", 2.0)))
    assert list(results.changes([standing(1.0)], [other])) == []
    assert list(results.changes([standing(1.0)], [replace(standing(2.0), unit="bytes")])) == []


@pytest.mark.parametrize(("after", "status"), [(1.05, 0), (2.0, 1)])
def test_the_command_compares(after: float, status: int, tmp_path: Path) -> None:
    for name, ratio in (("old", 1.0), ("new", after)):
        results.write(
            tmp_path / f"{name}.json",
            Run({**MACHINE, "versions": {"unamp": name}}, standings=[standing(ratio)]),
        )
    done = command("compare", tmp_path / "old.json", tmp_path / "new.json")
    assert done.returncode == status, done.stderr
    assert f"{status} slower, 0 faster" in done.stdout
    assert "not the same versions: {'unamp': 'old'} and {'unamp': 'new'}" in done.stdout


def test_the_command_refuses_runs_of_another_machine_or_setting_unless_told(tmp_path: Path) -> None:
    runs = {
        "old": Run(MACHINE),
        "new": Run(
            {**MACHINE, "cpu_count": 64}, "laptop", {"torch": {"MKL_CBWR": "AVX2"}, "paddle": {}}
        ),
    }
    for name, run in runs.items():
        run.standings.append(standing(1.0))
        results.write(tmp_path / f"{name}.json", run)
    files = [tmp_path / f"{name}.json" for name in runs]
    refused = command("compare", *files)
    assert refused.returncode == 2
    said = " ".join(refused.stderr.replace("│", "").split())
    assert "these runs are not comparable: not the same cpu_count: 2 and 64" in said
    assert "not the same setting: as-it-is and laptop (torch: MKL_CBWR=AVX2; paddle: none)" in said
    told = command("compare", *files, "--anyway")
    assert told.returncode == 0, told.stderr
    assert "0 slower, 0 faster, 1 within the noise" in told.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["compare", "nowhere.json", "nowhere.json"], "No such file"),
        (["region"], "unknown: region; valid: regions, "),
        (["--only", "waits"], "unknown selection 'waits'; valid: waiting, "),
        (
            ["--only", "waiting", "regions"],
            "--only waiting and sections (regions): give one of them",
        ),
        (["--machine", "abacus"], "unknown setting 'abacus'; valid: as-it-is, "),
    ],
)
def test_a_wrong_word_is_named(arguments: list[str], says: str) -> None:
    done = command(*arguments)
    assert done.returncode == 2
    assert says in " ".join(done.stderr.replace("│", "").split())


def test_a_setting_says_which_sections_it_leaves_out_and_is_kept(tmp_path: Path) -> None:
    done = command("--machine", "onednn-sse41", "jax-regions", "--json", tmp_path / "run.json")
    assert done.returncode == 0, done.stderr
    assert "not run: onednn-sse41 says nothing to jax" in done.stdout
    run = results.read(tmp_path / "run.json")
    assert (run.setting, run.variables) == (
        "onednn-sse41",
        {"torch": {"ONEDNN_MAX_CPU_ISA": "SSE41"}},
    )


def test_selections_name_sections() -> None:
    for name, selection in SELECTIONS.items():
        assert selection, name
        assert not set(selection) - set(SECTIONS), name
    assert set(chosen([], None, quick=False)) == set(SECTIONS)
    assert set(chosen([], None, quick=True)) == {
        name for name, section in SECTIONS.items() if section.quick
    }
    assert chosen(["memory"], None, quick=True) == {"memory": "*"}


def test_sections_know_their_framework() -> None:
    for name, section in SECTIONS.items():
        assert isinstance(section, Section)
        folder = section.place.partition(".")[0]
        assert folder in (
            f"on_{framework_of(name)}",
            "starting:importing",
            "starting:first_region",
        ), name


def test_a_peak_of_memory_is_forgotten_and_seen() -> None:
    meter = resident()
    before = meter.used()
    meter.reset()
    held = bytearray(64 << 20)
    held[::4096] = bytes(len(held) // 4096)  # the system gives memory only when it is written
    del held
    assert meter.peak() - before > 60 << 20


def test_pictures_are_whole_and_name_everything(tmp_path: Path) -> None:
    grown = Standing(
        "growth: regions, nested", 5, tuple(outcome(str(size), size**1.5) for size in (1, 10, 1000))
    )
    kept = [
        replace(standing(2.0, title=f"memory, {name}: a <wide> network"), unit="bytes")
        for name in ("PyTorch", "JAX")
    ]
    written = pictures.write(
        tmp_path, Run(MACHINE, "laptop", standings=[standing(0.9, 7.0), grown, *kept])
    )
    assert [path.name for path in written] == [
        "growth-regions-nested.svg",
        "ratios-torch.svg",
        "memory-a-<wide>-network.svg",
    ]
    for path in written:
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
    assert "an &lt;add&gt; &amp; more" in written[1].read_text()
    assert written[0].read_text().count("<circle") == 3
    assert written[2].read_text().count('height="10"') == 4
    for path in written[1:]:
        assert "one, 2 cores, as laptop, 2026-11-23" in path.read_text()


@pytest.mark.parametrize("name", ["results", "memory"])
def test_the_pictures_of_the_documentation_are_those_of_its_results(
    name: str, tmp_path: Path
) -> None:
    for path in pictures.write(
        tmp_path, results.read(ROOT / "docs" / "performance" / f"{name}.json")
    ):
        assert path.read_text() == (ROOT / "docs" / "performance" / path.name).read_text(), (
            path.name
        )
