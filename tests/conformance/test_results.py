"""Results files, the page, JUnit, comparison."""

import html
import json
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from unamp_conformance import junit
from unamp_conformance.compare import compare
from unamp_conformance.report import render
from unamp_conformance.results import BadResults, FrameworkRun, Report, Result, load, save

EVIL = "<script>alert(1)</script>\"'&\x00]]>"


def outputs(sample, policy="O1 bfloat16 unamp"):
    return Result("outputs", "mlp", policy, "cpu", "passed", details={"error": 0.01, "bound": 0.02, "sample": sample})


def report(*results, framework="torch", ended="finished"):
    run = FrameworkRun(framework, "2.13.0", "cpu", ended, results, (), 1.5)
    return Report("0.1.0", "2026-01-01T00:00:00+00:00", {"python": "3.11"}, {"ops": [], "full": False}, (run,))


FAILED = Result(
    "probe", "matmul", "deny float16", "cpu", "failed", "computed in float16", details={"seen": ["a", "b"]}, seconds=0.5
)


def test_a_report_survives_its_file(tmp_path):
    written = report(FAILED, outputs([1.0, 2.0]))
    save(written, tmp_path / "r.json")
    assert load(tmp_path / "r.json") == written


def test_only_what_went_well_is_ok():
    assert report(outputs([1.0])).ok
    assert not report(FAILED).ok
    assert not report(replace(FAILED, status="fixed")).ok
    assert report(replace(FAILED, status="gap")).ok
    assert not report(outputs([1.0]), ended="its process died").ok
    assert not report().ok  # nothing ran


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ('{"schema": 1, "runs', "not JSON"),
        ("[]", "has no 'schema'"),
        ('{"schema": 99}', "another version"),
        ('{"schema": 1}', "missing"),
        ('{"schema": 1, "unamp": 3}', "must not be int"),
        ('{"schema": 1, "surprise": 3}', "no field surprise"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, text, message):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(BadResults, match=message):
        load(tmp_path / "r.json")


def test_an_unknown_status_is_refused(tmp_path):
    save(report(FAILED), tmp_path / "r.json")
    (tmp_path / "r.json").write_text((tmp_path / "r.json").read_text().replace('"failed"', '"excellent"'))
    with pytest.raises(BadResults, match="unknown status 'excellent'"):
        load(tmp_path / "r.json")


@pytest.mark.parametrize("status", ["failed", "gap", "fixed"])
def test_hostile_names_never_become_markup(status):
    hostile = Result(EVIL, EVIL, EVIL, EVIL, status, EVIL, EVIL, {EVIL: EVIL, "list": [EVIL], "error": EVIL})
    run = FrameworkRun(EVIL, EVIL, EVIL, EVIL, (hostile,), (EVIL,))
    page = render(Report(EVIL, EVIL, {EVIL: EVIL}, {EVIL: [EVIL]}, (run,)))
    assert page.count("<script") == 2  # the page's own
    assert "&lt;script&gt;" in page


def test_the_page_needs_nothing_from_outside():
    page = render(report(FAILED))
    assert "http" not in page.replace("http-equiv", "")
    assert "default-src 'none'" in html.unescape(page)
    assert "prefers-color-scheme: dark" in page
    assert "computed in float16" in page


def test_junit_counts_and_survives_hostile_names(tmp_path):
    junit.write(report(FAILED, replace(FAILED, subject=EVIL), outputs([1.0])), tmp_path / "j.xml")
    suite = ET.parse(tmp_path / "j.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("3", "2")
    assert [len(case.findall("failure")) for case in suite] == [1, 1, 0]


def test_comparing_tells_what_changed():
    (difference,) = compare(report(FAILED), report(replace(FAILED, status="passed", message="")))
    assert (difference.subject, difference.first, difference.second) == ("matmul", "failed", "passed")
    assert compare(report(FAILED), report(FAILED)) == []


def test_frameworks_may_differ_by_their_bounds_and_no_more():
    assert compare(report(outputs([1.0, 2.0])), report(outputs([1.01, 2.01]), framework="paddle")) == []
    (difference,) = compare(report(outputs([1.0, 2.0])), report(outputs([1.0, 2.5]), framework="paddle"))
    assert difference.check == "agreement"


def test_numbers_that_json_lacks_are_never_written(tmp_path):
    with pytest.raises(ValueError, match="JSON compliant"):
        save(report(replace(FAILED, details={"error": float("nan")})), tmp_path / "r.json")
    assert json.dumps(1) == "1"
