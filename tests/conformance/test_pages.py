"""The parts of the report: evidence of failures, geometry of plots, pages written again."""

import math
import re
from dataclasses import replace

import pytest
import reports
from pretenders import Pretender, forgetful, relabelling
from typer.testing import CliRunner
from unamp_conformance.check.cases import cases
from unamp_conformance.check.netbounds import Reference
from unamp_conformance.check.netchecks import check_network
from unamp_conformance.check.networks import NETWORKS
from unamp_conformance.check.opchecks import check_operation
from unamp_conformance.check.probes import Probe
from unamp_conformance.cli import app
from unamp_conformance.report.evidence import evidence, ratio
from unamp_conformance.report.html import write
from unamp_conformance.report.pages import Page
from unamp_conformance.report.plots import panels
from unamp_conformance.results import Result, save
from unamp_conformance.subjects import Subject

from unamp.policy import Policy, Rule

RELABELLED = (
    "no known way (computed in float32; only the result was rounded to bfloat16), tag bfloat16"
)


@pytest.mark.parametrize(
    ("manner", "observed"), [(relabelling, RELABELLED), (forgetful, "float32, tag float32")]
)
def test_a_failing_probe_says_what_was_expected_and_what_was_seen(manner, observed):
    subject = Pretender(manner)
    _, details = check_operation(
        subject, Probe(cases()["matmul"], subject), Policy("O1", "bfloat16", allow=("matmul",))
    )
    assert {
        "of": "float32 inputs, forward",
        "expected": "bfloat16",
        "observed": observed,
    } in details["wrong"]


def test_a_failing_decision_says_what_was_expected_and_what_was_seen():
    class Misled(Subject):
        """Expect another rule for one operation than the policy's."""

        def rule(self, policy, op):
            return Rule.FP32 if op == "linear" else super().rule(policy, op)

    subject = Misled("torch", "cpu")
    found = check_network(subject, Reference(NETWORKS["mlp"]), Policy("O1", "bfloat16"))
    message, details = found["decisions"]
    assert message == "linear ran under low, the policy says float32"
    assert details["wrong"] == [{"of": "linear", "expected": "float32", "observed": "low"}]
    assert found["outputs"][1]["precision"] == "bfloat16"
    assert "wrong" not in found["dtypes"][1]

    decisions = Result(
        "decisions", "mlp", "O1 bfloat16 unamp", "cpu", "failed", message, details=details
    )
    (shown,) = evidence([decisions], [decisions])
    assert {d.op for d in shown.decisions if d.suspect} == {"linear"}
    assert {(d.rule, d.output) for d in shown.decisions if d.op == "linear"} == {
        ("low", "bfloat16")
    }


def test_a_trace_explains_the_other_checks_of_its_run():
    run = reports.broken().runs[0]
    wrong = [
        result for result in run.results if result.key == "outputs/transformer/O1 bfloat16 apex/cpu"
    ]
    (shown,) = evidence(wrong, run.results)
    assert [(d.op, d.rule, d.inputs, d.compute) for d in shown.decisions] == [
        ("linear", "low", "float32 float32", "bfloat16"),
        ("softmax", "low", "bfloat16", "bfloat16"),
    ]
    assert math.isclose(shown.ratio, 3.0)


@pytest.mark.parametrize(
    ("details", "expected"),
    [
        ({"error": 1.0, "bound": 4.0}, 0.25),
        ({"error": None, "bound": 4.0}, math.inf),
        ({"error": "1", "bound": 4.0}, math.inf),
        ({"error": 10**400, "bound": 4.0}, math.inf),
        ({"error": 1.0, "bound": 0.0}, None),
        ({"error": 1.0, "bound": 10**400}, None),
        ({"error": 1.0, "bound": True}, None),
        ({"bound": 4.0}, None),
        ({}, None),
    ],
)
def test_an_error_is_a_multiple_of_its_bound(details, expected):
    assert (
        ratio(Result("outputs", "mlp", "O1 float16 unamp", "cpu", "failed", details=details))
        == expected
    )


def test_marks_stand_where_their_errors_are():
    float32, bfloat16, float16 = panels(reports.broken().runs)
    assert (float32.dtype, bfloat16.dtype, float16.dtype) == ("float32", "bfloat16", "float16")
    decade = next(tick.x for tick in float32.ticks if tick.label == "10 %")
    share = (float32.marks[0].largest - decade) / (float32.bound - decade)
    # every error is half its bound
    assert math.isclose(share, math.log10(0.5 / 0.1), abs_tol=0.005)
    beyond = [mark for panel in (float32, bfloat16, float16) for mark in panel.marks if mark.label]
    assert [(mark.label, mark.status) for mark in beyond] == [
        ("3\N{MULTIPLICATION SIGN}", "failed"),
        ("not finite", "failed"),
    ]
    assert all(mark.largest > bfloat16.bound for mark in beyond[:1])


def test_everything_that_went_wrong_is_counted():
    page = Page(reports.broken())
    # seven checks, a gap that matches nothing, and a process that was given up
    assert page.unexpected == 9
    assert Page(reports.good()).unexpected == 0
    assert sum(page.totals.values()) == sum(len(run.results) for run in page.report.runs)


def test_a_page_is_written_again_from_its_results(tmp_path):
    save(reports.broken(), tmp_path / "results.json")
    page = tmp_path / "somewhere" / "page.html"
    ran = CliRunner().invoke(app, ["page", str(tmp_path / "results.json"), "--output", str(page)])
    assert ran.exit_code == 0, ran.output
    assert "Does not conform" in page.read_text("utf-8")

    (tmp_path / "results.json").write_text('{"schema": 1, "runs', "utf-8")
    ran = CliRunner().invoke(
        app, ["page", str(tmp_path / "results.json"), "--output", str(page)], env={"COLUMNS": "300"}
    )
    assert ran.exit_code == 2
    assert "results.json: not JSON" in ran.output


@pytest.mark.parametrize(
    ("selection", "part", "full"),
    [
        ({"ops": [], "full": False}, "", False),
        ({"ops": [], "full": True}, "", True),
        (
            {"ops": ["exp", "log"], "dtypes": ["float16"], "full": True},
            "ops exp, log; dtypes float16",
            True,
        ),
    ],
)
def test_the_page_says_what_part_of_the_suite_ran(selection, part, full, tmp_path):
    write(replace(reports.good(), selection=selection), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text("utf-8")
    assert re.findall("A part of the suite:</b> (.*)</p>", text) == ([part] if part else [])
    assert ("full run" in text) is full
