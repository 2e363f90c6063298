"""Operations that users register are probed where they have an example call."""

import os
import subprocess
import sys

import pytest
from unamp_conformance.reading import load
from unamp_conformance.results import Verdict

import unamp
from unamp.registration import examples

MODULE = """
import unamp


def scores(q, k, *, scale):
    return (q @ k) * scale


unamp.register_operation("mine::scores", scores, rule="low").example(
    {framework!r}, lambda q, k, **kw: {call}, "normal 4x8", "normal 8x4", scale=0.5
)
"""
FOLLOWED = "scores(q, k, **kw)"
# low by the default lists, but no list that names the registered operation reaches it
ITS_PARTS = "q @ k"


def ask(folder, framework, *options):
    command = [
        sys.executable,
        "-m",
        "unamp_conformance",
        "--framework",
        framework,
        "--device",
        "cpu",
        "--json",
    ]
    environment = {**os.environ, "COLUMNS": "300"}
    return subprocess.run(
        [*command, *options],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_an_example_is_probed(tmp_path, framework):
    (tmp_path / "mine.py").write_text(MODULE.format(framework=framework, call=FOLLOWED))
    done = ask(tmp_path, framework, "--import", "mine", "--op", "mine::*", "--output", "out")
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = load(tmp_path / "out/results.json").runs
    assert {result.subject for result in run.results} == {"mine::scores"}
    assert {"allow", "deny", "O1", "O2"} <= {
        r.policy.partition(" ")[0] for r in run.results if r.check == "probe"
    }


def test_an_operation_that_does_not_follow_its_rule_is_a_failure(tmp_path):
    (tmp_path / "mine.py").write_text(MODULE.format(framework="torch", call=ITS_PARTS))
    done = ask(tmp_path, "torch", "--import", "mine.py", "--op", "mine::scores", "--output", "out")
    assert done.returncode == Verdict.DOES_NOT_CONFORM, done.stdout + done.stderr
    (run,) = load(tmp_path / "out/results.json").runs
    failed = {result.policy for result in run.results if result.status == "failed"}
    assert {"deny bfloat16", "deny float16"} <= failed


def test_what_cannot_be_imported_starts_nothing(tmp_path):
    done = ask(tmp_path, "torch", "--import", "min", "--op", "mine::scores", "--output", "out")
    assert done.returncode == 2
    assert "there is no module 'min' here" in done.stderr
    done = ask(tmp_path, "torch", "--import", "mine", "--resume", "--output", "out")
    assert done.returncode == 2
    assert "--resume cannot tell" in done.stderr
    assert not (tmp_path / "out").exists()


def test_bad_examples_are_refused_and_undone_ones_forgotten():
    operation = unamp.register_operation("mine::example")
    try:
        with pytest.raises(ValueError, match="unknown framework 'troch'; did you mean 'torch'"):
            operation.example("troch", len, "normal 4")
        with pytest.raises(TypeError, match="an example calls a function, not 3"):
            operation.example("torch", 3, "normal 4")
        assert examples("torch") == {}
        assert operation.example("torch", len, "normal 4") is operation
        assert [*examples("torch")] == ["mine::example"]
        assert examples("jax") == {}
    finally:
        operation.undo()
    assert examples("torch") == {}
    with pytest.raises(ValueError, match="is no operation any more"):
        operation.example("torch", len, "normal 4")
