"""Results are written to files, the page and JUnit, and are compared."""

import html
import json
import xml.etree.ElementTree as ET
from dataclasses import MISSING, fields, replace
from importlib import resources

import pytest
from hostile import cut, spoilt
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner
from unamp_conformance.cli import app
from unamp_conformance.reading import load
from unamp_conformance.report import junit
from unamp_conformance.report.compare import compare
from unamp_conformance.report.html import render
from unamp_conformance.results import (
    READABLE,
    STATUSES,
    BadResults,
    FrameworkRun,
    Report,
    Result,
    Verdict,
    save,
)

EVIL = "<script>alert(1)</script>\"'&\x00]]>"


def outputs(sample, policy="O1 bfloat16 unamp"):
    return Result(
        "outputs",
        "mlp",
        policy,
        "cpu",
        "passed",
        details={"error": 0.01, "bound": 0.02, "sample": sample},
    )


def report(*results, framework="torch", ended="finished"):
    facts, variables = (
        {"onednn": True, "threads": 1, "capability": "AVX2"},
        {"OMP_NUM_THREADS": "1"},
    )
    run = FrameworkRun(framework, "2.13.0", "cpu", ended, results, (), 1.5, facts, variables)
    return Report(
        "0.1.0", "2026-01-01T00:00:00+00:00", {"python": "3.11"}, {"ops": [], "full": False}, (run,)
    )


FAILED = Result(
    "probe",
    "matmul",
    "deny float16",
    "cpu",
    "failed",
    "computed in float16",
    details={"seen": ["a", "b"]},
    seconds=0.5,
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
    assert report(replace(FAILED, status="not run")).verdict is Verdict.COULD_NOT_RUN


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ('{"schema": 1, "runs', "not JSON"),
        ("\udcff", "no UTF-8"),
        ("[]", "has no 'schema'"),
        (
            '{"schema": 99}',
            "another version of unamp, with schema 99; this one reads schemas 1 and 2",
        ),
        ('{"schema": 1}', "'unamp' is missing"),
        ('{"schema": 1, "surprise": 3}', "unknown field 'surprise'"),
        ('{"schema": 1, "schema": 1}', "the same field twice"),
        ('{"schema": NaN}', "NaN is no number of JSON"),
        ('{"schema": -Infinity}', "-Infinity is no number"),
        ('{"schema": 1e999}', "1e999 is too large"),
        ('{"schema": ' + "9" * 5000 + "}", "is too large"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, text, message):
    file = tmp_path / "r.json"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(BadResults, match=message) as caught:
        load(file)
    assert str(caught.value).startswith(f"{file}: ")


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("unamp",), 3, "the file, unamp: must be text, not int"),
        (("host",), [], "the file, host: must be an object, not list"),
        (("host", "python"), None, "the file, host, python: must be text, not NoneType"),
        (("runs",), {}, "the file, runs: must be a list, not dict"),
        (("runs", 0), "torch", "the file, runs 1: must be an object, not str"),
        (("runs", 0, "seconds"), "1", "runs 1, seconds: must be a number, not str"),
        (("runs", 0, "seconds"), True, "must be a number, not bool"),
        (("runs", 0, "problems"), [1], "runs 1, problems 1: must be text"),
        (
            ("runs", 0, "facts"),
            {"threads": 1.5},
            "facts, threads: must be a boolean, a whole number or text, not float",
        ),
        (
            ("runs", 0, "variables"),
            {"MKL_CBWR": 1},
            "runs 1, variables, MKL_CBWR: must be text, not int",
        ),
        (("runs", 0, "results", 0, "details"), [], "runs 1, results 1, details: must be an object"),
        (
            ("runs", 0, "results", 0, "details", "error"),
            "0",
            "details, error: must be a number, not str",
        ),
        (
            ("runs", 0, "results", 0, "details", "sample"),
            [1, "2"],
            "details, sample 2: must be a number, not str",
        ),
        (("runs", 0, "results", 0, "details", "trace"), "add", "details, trace: must be a list"),
        (
            ("runs", 0, "results", 0, "status"),
            "excellent",
            "unknown status 'excellent'; valid: passed,",
        ),
    ],
)
def test_a_field_of_another_kind_is_refused_and_named(tmp_path, place, value, message):
    file = tmp_path / "r.json"
    save(report(outputs([1.0])), file)
    data = json.loads(file.read_text())
    part = data
    for step in place[:-1]:
        part = part[step]
    part[place[-1]] = value
    file.write_text(json.dumps(data))
    with pytest.raises(BadResults, match=message):
        load(file)


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_file_that_was_cut_off_is_refused(tmp_path, cut):
    file = tmp_path / "r.json"
    save(report(FAILED, outputs([1.0])), file)
    text = file.read_text()
    file.write_text(text[: len(text.rstrip()) * cut // 40])
    with pytest.raises(BadResults, match="not JSON"):
        load(file)


def test_the_schema_says_what_is_written():
    schema = json.loads(
        resources.files("unamp_conformance").joinpath("data/results.schema.json").read_text("utf-8")
    )
    described = {
        Report: schema,
        FrameworkRun: schema["$defs"]["run"],
        Result: schema["$defs"]["result"],
    }
    for kind, part in described.items():
        names = {f.name for f in fields(kind)} | ({"schema"} if kind is Report else set())
        assert set(part["properties"]) == names
        required = {
            f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING
        }
        assert set(part["required"]) - {"schema"} == required
    assert schema["properties"]["schema"]["enum"] == list(READABLE)
    assert schema["$defs"]["result"]["properties"]["status"]["enum"] == list(STATUSES)


@pytest.mark.parametrize("status", ["failed", "gap", "fixed"])
def test_hostile_names_never_become_markup(status):
    hostile = Result(
        EVIL, EVIL, EVIL, EVIL, status, EVIL, EVIL, {EVIL: EVIL, "list": [EVIL], "error": EVIL}
    )
    run = FrameworkRun(EVIL, EVIL, EVIL, EVIL, (hostile,), (EVIL,), 0.0, {EVIL: EVIL}, {EVIL: EVIL})
    page = render(Report(EVIL, EVIL, {EVIL: EVIL}, {EVIL: [EVIL]}, (run,)))
    assert page.count("<script") == 2  # the page's own scripts
    assert "&lt;script&gt;" in page


def test_the_page_needs_nothing_from_outside():
    page = render(report(FAILED))
    assert "http" not in page.replace("http-equiv", "")
    assert "default-src 'none'" in html.unescape(page)
    assert "prefers-color-scheme: dark" in page
    assert "computed in float16" in page


def test_the_page_says_what_the_framework_computed_with():
    page = html.unescape(render(report(FAILED)))
    assert "<dd>onednn: yes, threads: 1, capability: AVX2, OMP_NUM_THREADS=1</dd>" in page


def test_junit_counts_and_survives_hostile_names(tmp_path):
    junit.write(report(FAILED, replace(FAILED, subject=EVIL), outputs([1.0])), tmp_path / "j.xml")
    suite = ET.parse(tmp_path / "j.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("3", "2")
    assert [len(case.findall("failure")) for case in suite] == [1, 1, 0]


def test_comparing_tells_what_changed():
    (found,) = compare(report(FAILED), report(replace(FAILED, status="passed", message="")))
    (difference,) = found.changed
    assert (difference.subject, difference.first, difference.second) == (
        "matmul",
        "failed",
        "passed",
    )
    assert difference.message == "computed in float16"
    assert not found.ok
    (found,) = compare(report(FAILED), report(FAILED))
    assert found.ok


def test_comparing_nothing_is_no_agreement():
    (found,) = compare(report(FAILED), report(outputs([1.0])))
    assert (found.both, found.alone, found.changed) == (0, (1, 1), ())
    assert not found.ok


def test_comparing_what_neither_ran_is_no_agreement():
    (found,) = compare(*(report(replace(FAILED, status="not run")) for _ in range(2)))
    assert (found.both, found.ok) == (0, False)


def test_a_run_that_ended_early_differs():
    (found,) = compare(report(FAILED), report(FAILED, ended="given up"))
    assert [(d.check, d.first, d.second) for d in found.changed] == [
        ("process", "finished", "given up")
    ]


def traced(line, policy="O1 bfloat16 unamp", device="cpu"):
    return Result(
        "decisions",
        "mlp",
        policy,
        device,
        "passed",
        details={"trace": ["linear: low, a -> b -> bfloat16", line]},
    )


def test_decisions_that_differ_are_told_operation_by_operation():
    before, after = (
        traced("softmax: float32, x -> y -> float32"),
        traced("softmax: widest, x -> y -> bfloat16"),
    )
    (found,) = compare(report(before), report(after))
    (difference,) = found.decisions
    assert (difference.subject, difference.policy) == ("softmax in mlp", "O1 bfloat16 unamp")
    assert (difference.first, difference.second) == ("float32 -> float32", "widest -> bfloat16")
    assert not found.ok


def test_the_frameworks_own_lists_may_depend_on_the_device():
    before, after = (
        traced(f"softmax: {rule}, x -> y -> float32", "O1 bfloat16 native")
        for rule in ("float32", "widest")
    )
    on_cpu, on_gpu = report(before), report(after)
    on_gpu = replace(on_gpu, runs=(replace(on_gpu.runs[0], device="gpu"),))
    assert compare(on_cpu, on_gpu)[0].ok
    assert not compare(on_cpu, report(after))[0].ok


def test_frameworks_may_differ_by_their_bounds_and_no_more():
    assert compare(report(outputs([1.0, 2.0])), report(outputs([1.01, 2.01]), framework="paddle"))[
        0
    ].ok
    (found,) = compare(report(outputs([1.0, 2.0])), report(outputs([1.0, 2.5]), framework="paddle"))
    assert [d.check for d in found.apart] == ["agreement"]
    assert not found.ok


def test_errors_are_held_against_each_other():
    before = [replace(outputs([1.0]), subject=name) for name in ("a", "b", "c")]
    grown = [replace(r, details={**r.details, "error": 0.01 * n}) for n, r in enumerate(before, 1)]
    (errors,) = compare(report(*before), report(*grown))[0].errors
    assert (errors.check, errors.compared, errors.where) == ("outputs", 3, "c [O1 bfloat16 unamp]")
    assert (errors.median, errors.largest) == pytest.approx((2.0, 3.0))


def test_every_framework_is_compared_with_itself():
    runs = {
        (f, d): replace(report(FAILED).runs[0], framework=f, device=d)
        for f in ("torch", "paddle")
        for d in ("cpu", "gpu")
    }
    several = lambda *names: replace(report(), runs=tuple(runs[name] for name in names))  # noqa: E731
    found = compare(
        several(("torch", "cpu"), ("paddle", "cpu")), several(("paddle", "cpu"), ("torch", "gpu"))
    )
    assert [(c.first, c.second) for c in found] == [
        ("torch 2.13.0, cpu", "torch 2.13.0, gpu"),
        ("paddle 2.13.0, cpu", "paddle 2.13.0, cpu"),
    ]
    found = compare(several(*runs), several(("torch", "gpu"), ("torch", "cpu")))
    assert [(c.first, c.second) for c in found] == [
        (f"torch 2.13.0, {d}",) * 2 for d in ("cpu", "gpu")
    ]
    assert (
        compare(
            several(("torch", "cpu"), ("torch", "gpu")),
            several(("paddle", "cpu"), ("paddle", "gpu")),
        )
        == []
    )


@pytest.mark.parametrize(("status", "code"), [("failed", 0), ("passed", 1)])
def test_the_command_says_whether_they_agree(tmp_path, status, code):
    save(report(FAILED, outputs([1.0])), tmp_path / "a.json")
    save(report(replace(FAILED, status=status), outputs([1.0])), tmp_path / "b.json")
    arguments = ["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    shown = CliRunner().invoke(app, arguments)
    assert (shown.exit_code, "they agree" in shown.output) == (code, code == 0)
    found = CliRunner().invoke(app, [*arguments, "--json"])
    assert found.exit_code == code
    (data,) = json.loads(found.output)
    assert (data["ok"], len(data["changed"]), data["errors"][0]["median"]) == (code == 0, code, 1.0)


def test_hostile_names_do_nothing_to_the_terminal(tmp_path):
    evil = EVIL + "[/red][bold]\x1b[2J\x9b"
    hostile = Result(evil, evil, evil, "cpu", "failed", evil, details={"error": 1.0, "bound": 1.0})
    for name, status in (("a", "failed"), ("b", "passed")):
        run = FrameworkRun(evil, evil, evil, "finished", (replace(hostile, status=status),))
        save(replace(report(), runs=(run,)), tmp_path / f"{name}.json")
    found = CliRunner().invoke(
        app, ["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")], env={"COLUMNS": "900"}
    )
    assert found.exit_code == 1, found.output
    assert "[/red][bold]" in found.output
    assert not {"\x1b", "\x9b", "\x00"} & set(found.output)


def test_the_command_refuses_what_it_cannot_read(tmp_path):
    save(report(FAILED), tmp_path / "a.json")
    (tmp_path / "b.json").write_text('{"schema": 99}')
    found = CliRunner().invoke(
        app, ["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")], env={"COLUMNS": "300"}
    )
    assert found.exit_code == 2
    assert "another version of unamp" in found.output


def test_numbers_that_json_lacks_are_never_written(tmp_path):
    with pytest.raises(ValueError, match="JSON compliant"):
        save(report(replace(FAILED, details={"error": float("nan")})), tmp_path / "r.json")
    assert json.dumps(1) == "1"


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_mutated_file_is_read_or_refused_in_words(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "mutated.json"
    save(report(FAILED, outputs([1.0, 2.0])), path)
    sound = json.loads(path.read_text("utf-8"))
    path.write_text(data.draw(cut(json.dumps(data.draw(spoilt(sound))))), "utf-8")
    refused, found = "", None
    try:
        found = load(path)
    except BadResults as error:
        refused = str(error)
    if found is None:
        assert refused
        assert all(line.isprintable() for line in refused.splitlines())
        return
    render(found)
    junit.write(found, path.with_suffix(".xml"))
    compare(found, found)
