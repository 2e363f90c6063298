"""The command `unamp` answers, and refuses bad arguments in one message."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from commanded import invoke

import unamp
from unamp.adapter.records import OpRecord, Values
from unamp.cli import arguments as cli_arguments
from unamp.explaining import differences


def run(
    *arguments: str, code: int = 0, command: tuple[str, ...] = ("-m", "unamp")
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *command, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def text_of(*arguments: str) -> str:
    """Return the output of a command that runs in this process.

    A process of its own would take a second each time.
    """
    done = invoke(*arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def data_of(*arguments: str) -> Any:
    return json.loads(text_of(*arguments, "--json"))


def said(stderr: str) -> str:
    """Return the text of standard error, without the frame and line breaks of its box."""
    return " ".join(stderr.replace("│", " ").split())


def refused(*arguments: str) -> str:
    """Return the message for a command's bad arguments.

    Check that the command prints nothing and raises nothing else.
    """
    done = invoke(*arguments)
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    return said(done.stderr)


def test_version() -> None:
    assert run("--version").stdout.strip() == unamp.__version__


def test_help_lists_the_commands() -> None:
    text = run("--help").stdout
    for command in "doctor ops explain diff drift trace compare migrate onnx conformance".split():
        assert command in text


def test_the_installed_script_is_the_module() -> None:
    script = Path(sys.executable).with_name("unamp")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == unamp.__version__


def test_ops_lists_the_vocabulary() -> None:
    listed = data_of("ops")
    assert list(listed) == list(unamp.vocabulary())
    assert listed["linear"]["spellings"]["mindspore"]
    text = text_of("ops")
    assert "linear" in text
    assert "matmul_v2" in text or "matmul" in text


def test_ops_shows_one_operation_in_any_spelling() -> None:
    one = data_of("ops", "paddle.matmul_v2")
    assert one["name"] == "matmul"
    assert one["rules"]["torch-cuda"] == "low"
    assert "native" not in one["rules"]
    text = text_of("ops", "lstm")
    for expected in ("recurrent", "computes with", "in mindspore", "preset paddle"):
        assert expected in text


def test_explain_says_rule_and_origin() -> None:
    explained = data_of(
        *"explain --level O2 --dtype bf16 --deny linear --deny AddV2 --allow softmax".split(),
    )
    assert explained["linear"] == {
        "rule": "float32",
        "origin": "your deny list",
        "how": {},
        "versions": {},
    }
    assert explained["add"]["origin"] == "your deny list"
    assert explained["softmax"]["rule"] == "low"
    assert explained["relu"] == {
        "rule": "low",
        "origin": "level O2: on no list",
        "how": {},
        "versions": {},
    }
    assert "your deny list" in text_of("explain", "--deny", "linear")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("ops", "matmull"), "unknown operation 'matmull'; did you mean"),
        (("explain", "--level", "O9"), "unknown level 'O9'; valid: O0, OD, O1, O2, O3"),
        (("explain", "--dtype", "int8"), "valid: 'float16', 'bfloat16'"),
        (("explain", "--preset", "x"), "unknown preset 'x'; valid: unamp, torch-cuda"),
        (("explain", "--preset", "native"), "name a framework, with --framework"),
        (("explain", "--allow", "linear", "--deny", "linear"), "in allow and in deny: linear"),
        (("explain", "--device", "tpu"), "unknown device 'tpu'; valid: cpu, gpu"),
        (
            ("explain", "--framework", "mxnet"),
            "unknown framework 'mxnet'; adapters are installed for:",
        ),
        (("no-such-command",), "No such command"),
    ],
)
def test_bad_arguments_are_one_message_and_no_traceback(
    arguments: tuple[str, ...], says: str
) -> None:
    assert says in refused(*arguments)


def test_a_process_with_bad_arguments_ends_as_the_command_does() -> None:
    done = run("ops", "matmull", code=2)
    assert said(done.stderr).replace("python -m unamp", "unamp") == refused("ops", "matmull")
    assert done.stdout == ""


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Return a file with a trace: a matrix product in a layer, and a mean."""
    trace = unamp.Trace(values=True)
    values = Values((2,), 0, 2.0, 1.5, 5**0.5, (1.0, 2.0))
    for op, layer, times in (("bmm", "Net.attention", 3), ("relu", "Net.1", 1), ("mean", None, 1)):
        record = OpRecord(
            op, op, unamp.Rule.LOW, ("float32",), "bfloat16", "bfloat16", layer=layer, values=values
        )
        trace.records += [record] * times
    path = tmp_path / "run.json"
    path.write_text(trace.to_json())
    return path


@pytest.mark.parametrize("level", [level for level in unamp.LEVELS if level != "O0"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_diff_is_where_the_decisions_differ(level: str, dtype: str) -> None:
    found = differences(
        *(unamp.Policy(level, dtype, preset=name) for name in ("paddle", "torch-cuda"))
    )
    for op in unamp.vocabulary():
        before, after = (
            unamp.Policy(level, dtype, preset=name).decide(op) for name in ("paddle", "torch-cuda")
        )
        assert (op in found) is (before is not after)
        assert op not in found or tuple(decision.rule for decision in found[op]) == (before, after)


def test_diff_says_both_rules_and_where_they_come_from() -> None:
    data = data_of("diff", "paddle", "torch-cuda")
    assert (data["before"], data["after"]) == ("paddle", "torch-cuda")
    assert [(policy["level"], policy["dtype"]) for policy in data["policies"]] == [
        ("O1", "float16")
    ]
    (mean,) = data["operations"]["mean"]
    assert mean == {
        "before": {"rule": "float32", "origin": "preset paddle: deny list", "advice": ""},
        "after": {"rule": "widest", "origin": "level O1: on no list", "advice": ""},
    }
    assert "sigmoid" in data["operations"]["binary_cross_entropy"][0]["after"]["advice"]
    assert "matmul" not in data["operations"]
    assert data_of("diff", "paddle", "paddle")["operations"] == {}
    lines = text_of("diff", "paddle", "torch-cuda").splitlines()
    assert lines[0].split()[:3] == [str(len(data["operations"])), "operations", "change"]
    assert len(lines) == 2 + len(data["operations"])


def test_diff_for_what_ran(recorded: Path) -> None:
    data = data_of("diff", "paddle", "torch-cuda", "--trace", str(recorded))
    assert {op: entry[0]["times"] for op, entry in data["operations"].items()} == {
        "bmm": 3,
        "mean": 1,
    }
    lines = text_of("diff", "paddle", "torch-cuda", "--trace", str(recorded)).splitlines()
    assert lines[0].strip() == "2 operations change at O1 in float16, of the 3 that ran"
    assert lines[2].split()[:4] == ["bmm", "3", "widest", "low"]


def test_diff_of_a_trace_uses_its_policies(tmp_path: Path, recorded: Path) -> None:
    trace = unamp.Trace.from_json(recorded.read_text())
    under = unamp.Policy("O2", "bfloat16", deny="relu")
    trace.records = [record._replace(policy=under) for record in trace.records]
    path = tmp_path / "o2.json"
    path.write_text(trace.to_json())
    data = data_of("diff", "paddle", "torch-cuda", "--trace", str(path))
    assert data["policies"] == [under.to_data()]
    title = text_of("diff", "unamp", "paddle", "--trace", str(path)).splitlines()[0].strip()
    assert title.endswith("at O2 in bfloat16, of the 3 that ran")
    denied = data_of(
        "diff", "unamp", "paddle", "--trace", str(path), "--deny", "mean", "--level", "O1"
    )
    assert denied["policies"] == [under.replace(level="O1").to_data()]
    assert "mean" not in denied["operations"]


def test_diff_takes_lists() -> None:
    assert "mean" in data_of("diff", "paddle", "torch-cuda")["operations"]
    assert "mean" not in data_of("diff", "paddle", "torch-cuda", "--deny", "mean")["operations"]
    assert (
        "mean"
        not in data_of("diff", "paddle", "torch-cuda", "--allow", "reduce_mean")["operations"]
    )


def test_compare_has_a_verdict_and_an_exit_code(tmp_path: Path, recorded: Path) -> None:
    trace = unamp.Trace.from_json(recorded.read_text())
    moved = [
        r._replace(values=r.values and r.values._replace(norm=r.values.norm * 2))
        for r in trace.records
    ]
    trace.records = moved
    other = tmp_path / "other.json"
    other.write_text(trace.to_json())
    assert invoke("compare", recorded, recorded).exit_code == 0
    done = invoke("compare", recorded, other)
    assert done.exit_code == 1
    assert "moved further than their precision explains, first" in done.stdout
    done = invoke("compare", recorded, other, "--json")
    assert (done.exit_code, json.loads(done.stdout)["within"]) == (1, False)


def test_a_trace_is_shown(recorded: Path, tmp_path: Path) -> None:
    assert (
        text_of("trace", str(recorded)).splitlines()
        == unamp.Trace.from_json(recorded.read_text()).table().splitlines()
    )
    assert [
        (line["op"], line["layer"], line["times"])
        for line in data_of("trace", str(recorded))["lines"]
    ] == [("bmm", "Net.attention", 3), ("relu", "Net.1", 1), ("mean", None, 1)]
    page = tmp_path / "page.html"
    assert text_of("trace", str(recorded), "--html", str(page)) == ""
    assert "<title>run</title>" in page.read_text("utf-8")


def test_traces_are_compared(recorded: Path) -> None:
    assert [o["error"] for o in data_of("compare", str(recorded), str(recorded))["operations"]] == [
        0.0
    ] * 5
    assert len(text_of("compare", str(recorded), str(recorded), "--limit", "2").splitlines()) == 4


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("diff", "paddle", "x"), "unknown preset 'x'; valid: unamp, torch-cuda"),
        (("diff", "paddle", "native"), "preset 'native' has no lists of its own"),
        (("diff", "paddle", "apex", "--level", "O9"), "unknown level 'O9'"),
        (
            ("diff", "paddle", "apex", "--trace", "absent.json"),
            "absent.json: No such file or directory",
        ),
        (("trace", __file__), "this is no trace"),
        (("compare", "absent.json", "absent.json"), "absent.json: No such file or directory"),
    ],
)
def test_bad_arguments_of_diff_and_of_traces(arguments: tuple[str, ...], says: str) -> None:
    assert says in refused(*arguments)


def test_what_goes_into_a_pipe_is_plain_and_whole() -> None:
    for command in (("ops",), ("explain",), ("diff", "paddle", "mindspore"), ("ops", "linear")):
        text = text_of(*command)
        assert "\x1b" not in text
        assert not set(text) & set("│┃─━┏└…"), command


def test_what_goes_to_a_terminal_has_colours() -> None:
    code = "import os, pty, sys; os.environ.pop('NO_COLOR', None); os.environ['TERM'] = 'xterm'; "
    code += "pty.spawn([sys.executable, '-m', 'unamp', 'diff', 'paddle', 'torch-cuda'])"
    assert "\x1b[32mlow" in run(code, command=("-c",)).stdout


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_its_extra_the_command_says_what_to_install(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from unamp.cli import main; main()"
    done = run(code, "--help", code=1, command=("-c",))
    assert done.stderr.strip() == (
        f"the command `unamp` needs {missing}, which is not installed; "
        "pip install 'unamp[conformance]'"
    )


def test_a_command_of_another_distribution_that_lacks_something_says_so() -> None:
    code = (
        "import sys; sys.modules['jinja2'] = sys.modules['numpy'] = None; "
        "from unamp.cli import main; main()"
    )
    done = run(code, "conformance", "--framework", "torch", code=1, command=("-c",))
    assert "which is not installed; pip install 'unamp[conformance]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_command_of_another_distribution_that_is_broken_takes_no_other_down(
    tmp_path: Path,
) -> None:
    (tmp_path / "broken.py").write_text("from json import absent\n", "utf-8")
    found = tmp_path / "broken-1.0.dist-info"
    found.mkdir()
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n", "utf-8")
    (found / "entry_points.txt").write_text("[unamp.commands]\nbroken = broken:app\n", "utf-8")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from unamp.cli import main; main()"
    assert "Not available: json cannot be imported" in " ".join(
        run(code, "--help", command=("-c",)).stdout.replace("│", " ").split()
    )
    assert run(code, "--version", command=("-c",)).stdout
    done = run(code, "broken", "--anything", code=1, command=("-c",))
    assert (
        "`unamp broken` cannot be imported (cannot import name 'absent' from 'json'" in done.stderr
    )
    assert "Traceback" not in done.stderr


def test_a_framework_that_lacks_something_is_not_called_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "strange.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(cli_arguments, "installed", lambda: {"strange": None, "gone": None})
    with pytest.raises(
        typer.BadParameter,
        match="strange is installed and cannot be imported: No module named 'no_such_dep",
    ):
        cli_arguments.import_framework("strange")
    with pytest.raises(
        typer.BadParameter, match=r"gone is not installed; pip install 'unamp\[gone\]'"
    ):
        cli_arguments.import_framework("gone")


def test_drift_shows_what_changes_between_versions() -> None:
    found = data_of("drift", "torch==2.10", "torch==2.15.0")
    assert found["presets"]["torch-cuda"] == {
        "operations": {
            "rms_norm": {
                "before": {"rule": "widest", "origin": "level O1: on no list"},
                "after": {"rule": "float32", "origin": "preset torch-cuda@2.15: deny list"},
            }
        },
        "unnamed": ["linalg_matrix_sqrth"],
    }
    text = text_of("drift", "torch==2.10", "torch==2.15")
    assert "1 operations change from torch==2.10 to torch==2.15 at O1 in float16" in text
    assert "rms_norm" in text
    assert "no operation of unamp's vocabulary: linalg_matrix_sqrth" in text
    everywhere = data_of("drift", "torch==2.10", "torch==2.15", "--level", "O3")["presets"]
    assert [each["operations"] for each in everywhere.values()] == [{}, {}, {}]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("torch==2.9", "torch==2.13"), "unknown version of torch '2.9'; valid: 2.8, 2.10, 2.11"),
        (
            ("torch==2.11", "paddle==3.3"),
            "are two frameworks; `unamp diff` shows how presets differ",
        ),
        (
            ("jax==0.9", "jax==0.10"),
            "unknown framework 'jax'; there are lists of versions of: mindspore, paddle",
        ),
        (("torch>=2", "torch==2.13"), "'torch>=2' names no version; write it as torch==2.11"),
        (
            ("torch==2.11", "torch==2.13", "train"),
            "name a function as module:function or file.py:function",
        ),
        (("torch==2.11", "torch==2.13", "none.py:step"), "none.py: there is no such file"),
    ],
)
def test_drift_says_what_is_wrong(arguments: tuple[str, ...], says: str) -> None:
    assert says in refused("drift", *arguments)


def test_explain_and_ops_say_which_versions_differ() -> None:
    row = next(
        line
        for line in text_of("explain", "--preset", "torch-cuda").splitlines()
        if line.startswith("rms_norm")
    )
    assert "widest in 2.8, 2.10, 2.11" in row
    assert (
        data_of("explain", "--preset", "torch-cuda@2.11")["rms_norm"]["versions"]["2.12"]
        == "float32"
    )
    assert "in other versions" not in text_of("explain")
    assert "float32 at O1; widest in 2.8, 2.10, 2.11" in text_of("ops", "rms_norm")
