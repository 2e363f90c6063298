"""For absent devices the suite reads decisions, and counts none of them as a run.

These devices have a matrix of their own.
"""

from __future__ import annotations

from collections import Counter

import reports
from unamp_conformance.check import agreement
from unamp_conformance.report.compare import of_devices
from unamp_conformance.report.html import render
from unamp_conformance.report.pages import Page
from unamp_conformance.results import FrameworkRun, Report, Result, Verdict
from unamp_conformance.run import runner
from unamp_conformance.run.drawing import READ, drawn, sample, told
from unamp_conformance.run.plan import Selection, items_to_read

from unamp.vocabulary import vocabulary

LOWERED = "lowered:cuda"
DECIDED = Result(
    "decisions", "mlp", "O1 bfloat16 unamp", LOWERED, "passed", details={"trace": reports.TRACE}
)


def read(*results: Result) -> Report:
    first = reports.run("jax", *reports.network_results())
    return reports.report(
        first, FrameworkRun("jax", "2.13.0", LOWERED, "finished", results, (), 1.0)
    )


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


def test_operations_are_told_apart_from_those_of_devices_that_are_here() -> None:
    def probed(op: str, status: str, **details: str) -> Result:
        return Result("probe", op, "allow bfloat16", LOWERED, status, details=details)

    why = "what it gives depends on numbers"
    unread = [probed(op, "not run", why=why) for op in ("unique", "nonzero")]
    page = Page(read(DECIDED, probed("softmax", "passed"), *unread))
    assert not page.probed
    (section,) = page.read
    assert list(section.matrix.rows) == ["mlp"]
    assert section.unreadable == {why: ["nonzero", "unique"]}
    text = render(page.report)
    assert "1 of 3 operations would compute as the policy says" in text
    assert f"{why}: " in text


def test_a_brief_run_draws_some_operations_and_as_few_networks_as_meet_all() -> None:
    plan = list(items_to_read(Selection(brief=True), list(vocabulary())[:200]))
    networks = [item for item in plan if item.kind == "network"]
    found = drawn(plan, Selection(brief=True, seed=3), few=True)
    assert [item for item in found if item.kind == "network"] == sample(networks, 1, seed=3)
    assert Counter(item.kind for item in found)["operation"] == READ
    assert told(found, plan, 3).startswith("30 of 200 operations, ")
    assert found != drawn(plan, Selection(brief=True, seed=4), few=True)
    assert drawn(plan, Selection(), few=True) == plan


def test_operations_are_read_in_every_dtype_but_in_a_brief_run() -> None:
    def dtypes(selection: Selection) -> set[int]:
        found = items_to_read(selection, ["add", "exp", "matmul"])
        return {
            len({policy.dtype for policy in item.policies.values()})
            for item in found
            if item.kind == "operation"
        }

    assert dtypes(Selection(brief=True)) == {1}
    assert dtypes(Selection()) == {2}


def test_what_is_read_and_wrong_fails_the_run() -> None:
    wrong = Result(
        "decisions",
        "mlp",
        "O1 bfloat16 unamp",
        LOWERED,
        "failed",
        "0 linear, forward: dot_general in float32",
    )
    report = read(wrong)
    assert report.verdict is Verdict.DOES_NOT_CONFORM
    assert "0 linear, forward: dot_general in float32" in render(report)


def test_what_cannot_be_read_is_not_run_and_says_why() -> None:
    asked = Selection(networks=("conv",), levels=("O1",), dtypes=("bfloat16",), presets=("unamp",))
    report = runner.run(["jax", "paddle"], [LOWERED], asked, runner.Options(jobs=2))
    assert [(run.framework, run.ended, len(run.results)) for run in report.runs] == [
        ("jax", "finished", 1),
        ("paddle", "not run", 0),
    ]
    assert report.ok
    assert (
        "of what paddle would run on a device that is not here nothing is read: a program of Paddle"
        in render(report)
    )
    alone = Report(report.unamp, report.started, report.host, report.selection, report.runs[1:])
    assert alone.verdict is Verdict.COULD_NOT_RUN
