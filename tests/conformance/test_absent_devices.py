"""Devices that are not here: of them decisions are read, in a matrix of their own, and nothing counts as a run."""

from __future__ import annotations

import reports
from unamp_conformance.check import agreement
from unamp_conformance.report.compare import of_devices
from unamp_conformance.report.html import render
from unamp_conformance.report.pages import Page
from unamp_conformance.results import FrameworkRun, Report, Result, Verdict
from unamp_conformance.run import runner
from unamp_conformance.run.plan import Selection

LOWERED = "lowered:cuda"
DECIDED = Result("decisions", "mlp", "O1 bfloat16 unamp", LOWERED, "passed", details={"trace": reports.TRACE})


def read(*results: Result) -> Report:
    first = reports.run("jax", *reports.network_results())
    return reports.report(first, FrameworkRun("jax", "2.13.0", LOWERED, "finished", results, (), 1.0))


def test_what_is_read_is_no_device_of_the_framework() -> None:
    report = read(DECIDED)
    page = Page(report)
    assert [section.run.device for section in page.frameworks] == ["cpu"]
    assert [section.run.device for section in page.read] == [LOWERED]
    assert not agreement.pairs(report.runs)
    assert not of_devices(report)


def test_the_report_has_a_matrix_of_its_own() -> None:
    text = render(read(DECIDED))
    assert '<section id="absent">' in text
    assert text.count("<caption") == 2
    assert '<section id="absent">' not in render(reports.good())


def test_what_is_read_and_wrong_fails_the_run() -> None:
    wrong = Result("decisions", "mlp", "O1 bfloat16 unamp", LOWERED, "failed", "0 linear, forward: dot_general in float32")
    report = read(wrong)
    assert report.verdict is Verdict.DOES_NOT_CONFORM
    assert "0 linear, forward: dot_general in float32" in render(report)


def test_what_cannot_be_read_is_not_run_and_says_why() -> None:
    asked = Selection(networks=("conv",), levels=("O1",), dtypes=("bfloat16",), presets=("unamp",))
    report = runner.run(["jax", "tensorflow"], [LOWERED], asked, runner.Options(jobs=2))
    assert [(run.framework, run.ended, len(run.results)) for run in report.runs] == [
        ("jax", "finished", 1),
        ("tensorflow", "not run", 0),
    ]
    assert report.ok
    assert "no way is known to read what tensorflow would run on a device that is not here" in render(report)
    alone = Report(report.unamp, report.started, report.host, report.selection, report.runs[1:])
    assert alone.verdict is Verdict.COULD_NOT_RUN
