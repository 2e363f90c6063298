"""Arguments of `unamp conformance` are checked first, and the exit status tells the outcome."""

import io
import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
import reports
from rich.console import Console
from typer.testing import CliRunner
from unamp_conformance.cli import app
from unamp_conformance.reading import load
from unamp_conformance.report.compare import compare
from unamp_conformance.report.terminal import show_comparison, show_report
from unamp_conformance.results import FrameworkRun, Report, Result, Verdict
from unamp_conformance.run.plan import Selection

PASSED = Result("outputs", "mlp", "O1 bfloat16 unamp", "cpu", "passed")
FAILED = Result("outputs", "mlp", "O1 float16 unamp", "cpu", "failed", "error 3, bound 1")


def ask(*arguments, code):
    found = CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "300"})
    assert found.exit_code == code, found.output
    return found.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--op", "softmx"], "unknown operation 'softmx'; did you mean 'softmax'"),
        (["--op", "qq*"], "no operation is called 'qq*'"),
        (["--op", "group:nom"], "unknown group in op 'nom'"),
        (["--dtype", "fp8"], "fp8"),
        (["--dtype", "float32"], "'float32' is not a low precision"),
        (["--network", "transfomer"], "did you mean 'transformer'"),
    ],
)
def test_a_wrong_name_starts_nothing(arguments, message, tmp_path):
    output = tmp_path / "there"
    assert message in ask(*arguments, "--output", output, code=2)
    assert not output.exists()


def test_every_spelling_is_taken():
    asked = Selection(
        ops=("paddle.matmul_v2", "LayerNorm", "nn.Dense", "group:softmax"),
        dtypes=("fp16", "torch.bfloat16"),
    )
    assert {"matmul", "layer_norm", "linear", "log_softmax"} <= set(asked.ops)
    assert asked.dtypes == ("float16", "bfloat16")
    assert Selection.from_dict(asked.as_dict()) == asked
    assert Selection(ops=("*",)).whole


@pytest.mark.parametrize(
    "arguments",
    [
        ("--network", "mlp", "--check", "probe"),
        ("--op", "add", "--check", "decisions"),
        ("--network", "mlp", "--check", "statistics"),
    ],
)
def test_nothing_selected_is_not_a_failure(arguments, tmp_path):
    assert "nothing was selected" in ask(*arguments, "--output", tmp_path, code=4)


def test_an_output_that_is_a_file_is_said_at_once(tmp_path):
    file = tmp_path / "results"
    file.write_text("mine")
    assert "is a file; name a folder" in ask("--op", "add", "--output", file, code=2)
    assert "cannot be made" in ask("--op", "add", "--output", file / "below", code=2)
    assert file.read_text() == "mine"


def test_a_framework_that_cannot_be_imported_is_in_every_file(tmp_path, monkeypatch):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise ImportError('libcuda is broken')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    output = tmp_path / "out"
    said = ask("--framework", "torch", "--device", "cpu", "--op", "add", "--output", output, code=3)
    why = "not usable: ImportError: libcuda is broken"
    assert f"torch unknown, cpu: {why}" in said
    assert said.rstrip().splitlines()[-1].startswith("could not run; the report is")
    assert load(output / "results.json").runs[0].ended == why
    errors = [case.get("message") for case in ET.parse(output / "junit.xml").iter("error")]
    assert errors == [why]
    assert ET.parse(output / "junit.xml").getroot()[0].get("errors") == "1"
    assert "libcuda is broken" in (output / "report.html").read_text("utf-8")
    brief = json.loads(
        ask(
            "--framework",
            "torch",
            "--device",
            "cpu",
            "--op",
            "add",
            "--output",
            output,
            "--json",
            code=3,
        )
    )
    assert (brief["verdict"], brief["runs"][0]["ended"]) == ("could not run", why)


def test_a_device_that_is_absent_could_not_run(tmp_path):
    said = ask(
        "--framework", "paddle", "--device", "gpu", "--op", "add", "--output", tmp_path, code=3
    )
    assert "not run, for there is no such device here: paddle on gpu" in said
    (suite,) = ET.parse(tmp_path / "junit.xml").getroot()
    assert (suite.get("tests"), suite.get("skipped")) == ("1", "1")
    assert [case.get("message") for case in suite.iter("skipped")] == ["there is no gpu here"]


def a_run(*results, ended="finished", framework="torch", device="cpu"):
    return FrameworkRun(framework, "2.13.0", device, ended, results)


@pytest.mark.parametrize(
    ("runs", "verdict"),
    [
        ([a_run(PASSED), a_run(ended="not run", device="gpu")], Verdict.CONFORMS),
        ([a_run(PASSED, FAILED), a_run(ended="not opened: it died")], Verdict.DOES_NOT_CONFORM),
        ([a_run(PASSED), a_run(ended="not opened: it died")], Verdict.COULD_NOT_RUN),
        ([a_run(ended="not run", device="gpu")], Verdict.COULD_NOT_RUN),
        ([a_run()], Verdict.NOTHING_SELECTED),
        ([a_run(replace(PASSED, status="not applicable"))], Verdict.NOTHING_SELECTED),
    ],
)
def test_what_failed_weighs_more_than_what_could_not_run(runs, verdict):
    assert Report("1", "2026", {}, {}, tuple(runs)).verdict is verdict


@pytest.mark.parametrize("report", [reports.good(), reports.broken()], ids=["good", "broken"])
def test_the_end_of_a_run_is_read_in_80_columns(report, tmp_path):
    console = Console(record=True, width=80)
    show_report(console, report, tmp_path)
    lines = console.export_text().rstrip().splitlines()
    said = " ".join(lines)
    assert f"{report.verdict}; the report is" in said[said.rindex(str(report.verdict)) - 1 :]
    overview = [
        line
        for line in lines
        if line.strip().startswith(("torch", "paddle")) and line.rstrip()[-1].isdigit()
    ]
    assert len(overview) >= 2
    assert max(map(len, overview)) <= 80
    # no matrix unless an option asks for it
    assert not any("O1" in line and "OD" in line for line in lines)


def test_matrices_are_shown_to_whom_asks_and_fit_in_80_columns(tmp_path):
    console = Console(record=True, width=80)
    show_report(console, reports.good(), tmp_path, matrices=True)
    lines = console.export_text().splitlines()
    heads = [line for line in lines if "fp16" in line]
    assert heads
    assert not any("\N{HORIZONTAL ELLIPSIS}" in line for line in heads)


def test_long_names_are_folded_and_never_cut():
    names = [
        f"torch.compile_of_a_region_in_a_function_of_a_module_{end}"
        for end in ("called_again", "called_once")
    ]
    results = [replace(PASSED, check="ways", way=name) for name in names]
    console = Console(width=50, record=True, file=io.StringIO())
    show_report(console, reports.report(reports.run("torch", *results)), Path("out"), matrices=True)
    printed = "".join(console.export_text().replace("●", "").split())
    assert [name for name in names if name not in printed] == []


def test_a_comparison_cuts_no_name():
    names = [f"a_network_with_a_long_name_that_ends_in_{end}" for end in ("one", "two")]
    first, second = (
        reports.report(
            reports.run("torch", *(replace(PASSED, subject=name, status=status) for name in names))
        )
        for status in ("passed", "failed")
    )
    console = Console(width=70, record=True, file=io.StringIO())
    (found,) = compare(first, second)
    show_comparison(console, found)
    columns = [
        line.split("│")[2].strip()
        for line in console.export_text().splitlines()
        if line.count("│") == 7
    ]
    assert [name for name in names if name not in "".join(columns)] == []
