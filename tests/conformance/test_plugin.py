"""The pytest plugin runs as its users run it."""

import os
import subprocess
import sys

import pytest
from unamp_conformance import pytest_checks
from unamp_conformance.gaps import KnownGap
from unamp_conformance.run import worker

from unamp.adapter.registry import adapter_for


class Seen:
    """A plugin that keeps the reports of a run of pytest."""

    def __init__(self):
        self.outcomes, self.texts = {}, []

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome == "skipped":
            name = report.nodeid.partition("[")[2].rstrip("]")
            self.outcomes[name] = (
                f"expected: {report.wasxfail}" if hasattr(report, "wasxfail") else report.outcome
            )
            self.texts.append(report.longreprtext)

    def pytest_collectreport(self, report):
        self.texts.append(report.longreprtext)


@pytest.fixture
def run(tmp_path):
    """Run pytest inside pytest, so that the framework is imported once."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    def started(*options, code=0):
        seen = Seen()
        place = [
            "-c",
            str(tmp_path / "pytest.ini"),
            "--rootdir",
            str(tmp_path),
            "-p",
            "no:cacheprovider",
            "-q",
        ]
        assert (
            pytest.main([*place, "--pyargs", "unamp_conformance", *options], plugins=[seen]) == code
        )
        return seen

    return started


TORCH = "--unamp-framework=torch"


def test_checks_are_tests_with_names_and_gaps_are_expected_failures(run):
    seen = run(TORCH, "--unamp-op=matmul", "--unamp-op=conj")
    assert seen.outcomes["torch-cpu-coverage-matmul"] == "passed"
    assert seen.outcomes["torch-cpu-probe-matmul-O1-bfloat16-unamp"] == "passed"
    assert seen.outcomes["torch-cpu-probe-conj-deny-float16"].startswith(
        "expected: moves or marks data"
    )
    assert len(seen.outcomes) > 20


def test_options_select(run):
    chosen = (
        "--unamp-network=mlp --unamp-level=O1 --unamp-dtype=float16 --unamp-preset=paddle"
    ).split()
    seen = run(TORCH, *chosen)
    kinds = ("decisions", "outputs", "gradients", "dtypes")
    assert seen.outcomes == {f"torch-cpu-{kind}-mlp-O1-float16-paddle": "passed" for kind in kinds}


def test_a_wrong_result_fails_with_what_was_seen(run, monkeypatch):
    monkeypatch.setattr(
        worker,
        "check_operation",
        lambda *_, **__: ("computed in float32", {"seen": ["tag float32"]}),
    )
    seen = run(
        TORCH,
        "--unamp-op=matmul",
        "--unamp-check=probe",
        "--unamp-preset=unamp",
        "--unamp-level=O1",
        code=1,
    )
    assert set(seen.outcomes.values()) == {"failed"}
    assert "computed in float32\nseen: tag float32" in seen.texts[-1]


def test_a_known_gap_that_passes_is_a_failure(run, monkeypatch):
    monkeypatch.setattr(worker, "check_operation", lambda *_, **__: ("", {}))
    seen = run(TORCH, "--unamp-op=conj", "--unamp-check=probe", "-k", "deny", code=1)
    assert set(seen.outcomes.values()) == {"failed"}
    assert "[XPASS(strict)] moves or marks data" in seen.texts[-1]


def test_a_known_gap_that_asks_for_what_nobody_tells_is_named(run, monkeypatch):
    gap = KnownGap(
        "probe", ("matmul",), "no kernel", "https://example.org", ">=2", where={"onednn_bf17": True}
    )
    monkeypatch.setattr(pytest_checks, "gaps_of", lambda framework: (gap,))
    said = "".join(run(TORCH, "--unamp-op=matmul", code=2).texts)
    assert "the known gap probe matmul asks for 'onednn_bf17'; known are amx_bf16," in said


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--unamp-framework=caffe"], "unknown framework 'caffe'; adapters are installed for: "),
        ([TORCH, "--unamp-level=O9"], "unknown level 'O9'"),
        ([TORCH, "--unamp-check=agreement"], "agreement needs several frameworks"),
        ([TORCH, "--unamp-op=softmx"], "unknown operation 'softmx'; did you mean 'softmax'"),
        ([TORCH, "--unamp-op=add", "--unamp-check=decisions"], "nothing was selected"),
        ([], "name a framework, with --unamp-framework"),
    ],
)
def test_bad_options_are_named(run, options, says):
    said = "".join(run(*options, code=2).texts)
    assert says in said
    assert "Error" not in said  # no traceback


def test_a_device_that_is_absent_is_never_passed(run, monkeypatch):
    monkeypatch.setattr(type(adapter_for("torch")), "devices", lambda self: ("cpu",))
    seen = run(TORCH, "--unamp-device=gpu")
    assert seen.outcomes == {"torch-gpu": "skipped"}
    assert "not run: there is no gpu here" in seen.texts[-1]


def test_another_projects_tests_do_not_notice_it(tmp_path):
    (tmp_path / "test_other.py").write_text(
        "import sys\n"
        "def test_nothing_heavy_is_there():\n"
        "    brought = {'numpy', 'unamp', 'torch', 'unamp_conformance.run.plan', "
        "'jinja2', 'rich', 'typer'}\n"
        "    assert not brought & set(sys.modules)\n"
    )
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "unamp_conformance.pytest_plugin", "-q"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
