"""The command `unamp`, run as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import unamp


def run(*arguments: str, code: int = 0, command: tuple[str, ...] = ("-m", "unamp")) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, *command, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def as_json(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


def said(done: subprocess.CompletedProcess[str]) -> str:
    """What went to standard error, without the frame and the line breaks of the box around it."""
    return " ".join(done.stderr.replace("│", " ").split())


def test_version() -> None:
    assert run("--version").stdout.strip() == unamp.__version__


def test_help_lists_the_commands() -> None:
    text = run("--help").stdout
    for command in ("doctor", "ops", "explain", "conformance"):
        assert command in text


def test_the_installed_script_is_the_module() -> None:
    script = Path(sys.executable).with_name("unamp")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == unamp.__version__


def test_ops_lists_the_vocabulary() -> None:
    listed = as_json("ops")
    assert list(listed) == list(unamp.vocabulary())
    assert listed["linear"]["spellings"]["mindspore"]
    text = run("ops").stdout
    assert "linear" in text
    assert "matmul_v2" in text or "matmul" in text


def test_ops_shows_one_operation_in_any_spelling() -> None:
    one = as_json("ops", "paddle.matmul_v2")
    assert one["name"] == "matmul"
    assert one["rules"]["torch-cuda"] == "low"
    assert "native" not in one["rules"]
    text = run("ops", "lstm").stdout
    for expected in ("recurrent", "computes with", "in mindspore", "preset paddle"):
        assert expected in text


def test_explain_says_rule_and_origin() -> None:
    explained = as_json(
        "explain", "--level", "O2", "--dtype", "bf16", "--deny", "linear", "--deny", "AddV2", "--allow", "softmax"
    )
    assert explained["linear"] == {"rule": "float32", "origin": "your deny list", "how": {}}
    assert explained["add"]["origin"] == "your deny list"
    assert explained["softmax"]["rule"] == "low"
    assert explained["relu"] == {"rule": "low", "origin": "level O2: on no list", "how": {}}
    assert "your deny list" in run("explain", "--deny", "linear").stdout


def test_explain_says_how_a_framework_does_it() -> None:
    explained = as_json("explain", "--framework", "torch", "--device", "cpu", "--dtype", "bfloat16", "--deny", "linear")
    assert set(explained["linear"]["how"]["torch"]) == {"cpu"}
    assert explained["linear"]["how"]["torch"]["cpu"] == "intercepted"


def test_explain_takes_the_preset_native_with_a_framework_and_a_device() -> None:
    native = as_json("explain", "--preset", "native", "--framework", "torch", "--device", "cpu")
    lists = as_json("explain", "--preset", "torch-cpu")
    assert {op: e["rule"] for op, e in native.items()} == {op: e["rule"] for op, e in lists.items()}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("ops", "matmull"), "unknown operation 'matmull'; did you mean"),
        (("explain", "--level", "O9"), "unknown level 'O9'; valid: O0, OD, O1, O2, O3"),
        (("explain", "--dtype", "int8"), "valid: 'float16', 'bfloat16'"),
        (("explain", "--preset", "x"), "unknown preset 'x'; valid: unamp, torch-cuda"),
        (("explain", "--preset", "native"), "name a framework"),
        (("explain", "--allow", "linear", "--deny", "linear"), "in allow and in deny: linear"),
        (("explain", "--device", "tpu"), "unknown device 'tpu'; valid: cpu, gpu"),
        (("explain", "--framework", "jax"), "unknown framework 'jax'; adapters are installed for:"),
        (("no-such-command",), "No such command"),
    ],
)
def test_bad_arguments_are_one_message_and_no_traceback(arguments: tuple[str, ...], says: str) -> None:
    done = run(*arguments, code=2)
    assert says in said(done)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_doctor_reports_every_framework_with_an_adapter() -> None:
    reports = {report["framework"]: report for report in as_json("doctor")}
    torch = reports["torch"]
    assert torch["status"] == "ready"
    assert torch["devices"]["cpu"]["bfloat16"] in ("native", "emulated")
    assert set(torch["devices"]) == {"cpu", "gpu"}


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_its_extra_the_command_says_what_to_install(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from unamp.cli import main; main()"
    done = run(code, "--help", code=1, command=("-c",))
    assert done.stderr.strip() == (
        f"the command `unamp` needs {missing}, which is not installed; pip install 'unamp[conformance]'"
    )


def test_a_command_of_another_distribution_that_lacks_something_says_so() -> None:
    code = "import sys; sys.modules['jinja2'] = sys.modules['numpy'] = None; from unamp.cli import main; main()"
    done = run(code, "conformance", "--framework", "torch", code=1, command=("-c",))
    assert "which is not installed; pip install 'unamp[conformance]'" in done.stderr
    assert "Traceback" not in done.stderr
