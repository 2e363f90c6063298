"""The table that `make conformance-versions` makes of its findings is right.

No test runs the command itself: it takes hours.
"""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def versions():
    sys.path.insert(0, str(ROOT / "conformance"))  # a script finds the modules beside it
    spec = importlib.util.spec_from_file_location(
        "conformance_versions", ROOT / "conformance/versions.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_arguments_choose(versions):
    row = versions.Row("torch", "torch", "2.6.0", "3.11")
    assert list(versions.chosen(["torch==2.6.0@3.11"])) == [row]
    assert list(versions.chosen(["torch==2.6.0"])) == [
        row._replace(python="{}.{}".format(*sys.version_info))
    ]
    assert [row.python for row in versions.chosen(["paddle==3.3.1"])] == ["3.11", "3.13", "3.14"]
    assert {row.python for row in versions.chosen(["mindspore@3.12"])} == {"3.12"}
    assert {row.package for row in versions.chosen(["paddle"])} == {"paddlepaddle"}
    assert {row.framework for row in versions.chosen([])} == {
        "torch",
        "paddle",
        "mindspore",
        "tensorflow",
        "jax",
    }
    with pytest.raises(
        SystemExit,
        match="unknown framework 'caffe'; valid: torch, paddle, mindspore, tensorflow, jax",
    ):
        list(versions.chosen(["caffe"]))
    with pytest.raises(
        SystemExit, match=r"'torch=2' is no FRAMEWORK\[==VERSION\]\[@PYTHON\], such as torch"
    ):
        list(versions.chosen(["torch=2"]))


def test_every_version_has_a_python(versions):
    assert all(
        row.python in ("3.11", "3.12", "3.13", "3.14", "3.15") for row in versions.chosen([])
    )


def test_the_newest_and_the_oldest_that_conform_did_so_on_the_newest_and_the_oldest_python(
    versions,
):
    for framework, rows in json.loads(versions.RESULTS.read_text("utf-8")).items():
        results = {
            version: {p: found["result"] for p, found in pythons.items()}
            for version, pythons in rows.items()
        }
        conform = sorted(
            (v for v, found in results.items() if "conforms" in found.values()),
            key=versions.numbers,
        )
        for version in (conform[0], conform[-1]):
            wheels = [python for python, result in results[version].items() if result != "no wheel"]
            assert {results[version][python] for python in wheels} == {"conforms"}, (
                f"{framework} {version}"
            )
            assert "3.11" in wheels, f"{framework} {version}"
            following = f"3.{1 + max(versions.numbers(python)[1] for python in wheels)}"
            if (framework, version) == ("jax", "0.8.0"):
                # flax 0.12.0, which belongs to this version, cannot be imported on Python 3.14
                version = "0.8.1"
                following = (
                    f"3.{1 + max(versions.numbers(python)[1] for python in results[version])}"
                )
            assert following in ("3.15", "3.16") or results[version].get(following) == "no wheel", (
                f"{framework} {version}"
            )


def test_a_python_is_one_that_says_so_itself(versions, tmp_path, monkeypatch):
    here = "{}.{}".format(*sys.version_info)
    assert versions.found_python(here) == sys.executable
    monkeypatch.setenv("PATH", str(tmp_path))
    assert versions.found_python("3.99") is None
    shim = tmp_path / "python3.99"
    shim.write_text("#!/bin/sh\necho 'python3.99: command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    assert versions.found_python("3.99") is None
    shim.write_text("#!/bin/sh\necho 3.99\n")
    assert versions.found_python("3.99") == str(shim)
    assert versions.found_python("3.99", [str(tmp_path / "nowhere")]) == str(shim)
    other = tmp_path / "other"
    shim.rename(other)
    assert versions.found_python("3.99", [str(other)]) == str(other)


def test_a_python_that_is_missing_is_named(versions, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(versions, "RESULTS", tmp_path / "versions.json")
    monkeypatch.setattr(versions, "TABLE", tmp_path / "versions.md")
    assert versions.main(["torch==2.13.0@3.99"]) == 1
    said = capsys.readouterr()
    assert said.out == "torch 2.13.0 on Python 3.99: left out: no Python 3.99 here\n"
    assert (
        said.err
        == "there is no Python 3.99 here: put python3.99 on PATH, or name one with --python\n"
    )
    assert not versions.RESULTS.exists()


def test_a_framework_without_a_wheel_is_told_from_one_that_does_not_install(versions):
    said = (
        "ERROR: Could not find a version\n"
        "ERROR: No matching distribution found for mindspore==2.10.0\n"
    )
    assert versions._not_installed(said, "mindspore==2.10.0") == {
        "result": "no wheel",
        "message": "",
    }
    offline = "WARNING: Retrying (Retry(total=4)) after connection broken\n" + said
    assert versions._not_installed(offline, "mindspore==2.10.0")["result"] == "does not install"
    assert (
        versions._not_installed(said, "numpy==9")["message"]
        == "ERROR: No matching distribution found for mindspore==2.10.0"
    )


def test_what_is_left_out_for_a_python_has_no_wheel_for_it(versions):
    from wheels import without_wheels

    for framework, rows in json.loads(versions.RESULTS.read_text("utf-8")).items():
        newest = rows[max(rows, key=versions.numbers)]
        for python, found in newest.items():
            left_out = framework in without_wheels(versions.numbers(python))
            assert left_out == (found["result"] == "no wheel"), f"{framework} on Python {python}"


def test_a_requirement_of_a_framework_is_read_or_refused(versions):
    from wheels import first_without

    assert first_without("torch>=2.10,<3") == ("torch", None)
    assert first_without("tensorflow-cpu>=2.18,<3; python_version < '3.14'") == (
        "tensorflow-cpu",
        (3, 14),
    )
    with pytest.raises(
        ValueError, match=r"cannot read 'torch~=2\.10'; write it as torch>=2\.10,<3"
    ):
        first_without("torch~=2.10")


def test_a_result_is_said_in_a_sentence(versions):
    checks = {"passed": 9, "failed": 1}
    failing = {
        "result": "fails",
        "message": "",
        "checks": checks,
        "wrong": ["probe/add/deny float16/cpu"],
    }
    assert (
        versions.sentence(failing) == "fails: 9 passed, 1 failed; first: probe/add/deny float16/cpu"
    )
    assert versions.sentence({"result": "refused", "message": "too old"}) == "refused: too old"
    assert (
        versions.sentence({"result": "conforms", "message": "", "checks": {"passed": 9}})
        == "conforms: 9 passed"
    )


def test_what_was_refused_is_said_without_places(versions, tmp_path):
    advice = (
        "unamp.errors.AdapterError: "
        f"cannot import name 'x' from 'torch' ({tmp_path}/lib/torch/__init__.py)"
    )
    assert versions._said(advice, tmp_path) == "cannot import name 'x' from 'torch'"


def test_the_table_in_the_docs_is_the_generated_one(versions):
    known = json.loads(versions.RESULTS.read_text("utf-8"))
    assert versions.TABLE.read_text("utf-8") == versions.table(known)


def test_two_runs_at_a_time_keep_what_both_found(versions, tmp_path, monkeypatch):
    monkeypatch.setattr(versions, "RESULTS", tmp_path / "results/versions.json")
    monkeypatch.setattr(versions, "TABLE", tmp_path / "versions.md")
    found = {"where": "here", "commit": "1234567", "result": "conforms", "message": ""}

    def meanwhile(row, interpreter):
        # the other run
        versions.keep(versions.Row("paddle", "paddlepaddle", "3.3.1", "3.13"), found)
        return found

    monkeypatch.setattr(versions, "examined", meanwhile)
    here = "{}.{}".format(*sys.version_info)
    assert versions.main([f"torch==2.13.0@{here}"]) == 0
    known = {"paddle": {"3.3.1": {"3.13": found}}, "torch": {"2.13.0": {here: found}}}
    assert json.loads(versions.RESULTS.read_text("utf-8")) == known
    assert versions.TABLE.read_text("utf-8").count("| conforms |") == 2
