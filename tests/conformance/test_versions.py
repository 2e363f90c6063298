"""What `make conformance-versions` makes of what it found. That it runs them takes hours, so it is no test."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def versions():
    spec = importlib.util.spec_from_file_location("conformance_versions", ROOT / "conformance/versions.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_arguments_choose(versions):
    assert list(versions.chosen(["torch==2.6.0"])) == [("torch", "torch", "2.6.0")]
    assert {(framework, package) for framework, package, _ in versions.chosen(["paddle"])} == {("paddle", "paddlepaddle")}
    assert {framework for framework, *_ in versions.chosen([])} == {"torch", "paddle", "mindspore", "tensorflow"}
    with pytest.raises(SystemExit, match="unknown framework 'caffe'; valid: torch"):
        list(versions.chosen(["caffe"]))


def test_a_result_is_said_in_a_sentence(versions):
    checks = {"passed": 9, "failed": 1}
    failing = {"result": "fails", "message": "", "checks": checks, "wrong": ["probe/add/deny float16/cpu"]}
    assert versions.sentence(failing) == "fails: 9 passed, 1 failed; first: probe/add/deny float16/cpu"
    assert versions.sentence({"result": "refused", "message": "too old"}) == "refused: too old"
    assert versions.sentence({"result": "conforms", "message": "", "checks": {"passed": 9}}) == "conforms: 9 passed"


def test_what_was_refused_is_said_without_places(versions, tmp_path):
    advice = f"unamp.errors.AdapterError: cannot import name 'x' from 'torch' ({tmp_path}/lib/torch/__init__.py)"
    assert versions._said(advice, tmp_path) == "cannot import name 'x' from 'torch'"


def test_the_table_in_the_docs_is_the_generated_one(versions):
    known = json.loads(versions.RESULTS.read_text("utf-8"))
    assert versions.TABLE.read_text("utf-8") == versions.table(known)


def test_two_runs_at_a_time_keep_what_both_found(versions, tmp_path, monkeypatch):
    monkeypatch.setattr(versions, "RESULTS", tmp_path / "results/versions.json")
    monkeypatch.setattr(versions, "TABLE", tmp_path / "versions.md")
    found = {"where": "here", "result": "conforms", "message": ""}

    def meanwhile(framework, package, version):
        versions.keep("paddle", "3.3.1", found)  # the other run
        return found

    monkeypatch.setattr(versions, "examined", meanwhile)
    assert versions.main(["torch==2.13.0"]) == 0
    assert json.loads(versions.RESULTS.read_text("utf-8")) == {"paddle": {"3.3.1": found}, "torch": {"2.13.0": found}}
    assert versions.TABLE.read_text("utf-8").count("| conforms |") == 2
