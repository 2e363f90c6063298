"""The runner: whatever a framework's process does, there is a result."""

import sys
import textwrap

import pytest
from typer.testing import CliRunner
from unamp_conformance.cli import app
from unamp_conformance.plan import Selection, items
from unamp_conformance.results import load
from unamp_conformance.runner import run_framework

START = """
import json, os, sys, time
orders = json.load(sys.stdin)
pipe = os.fdopen(orders["pipe"], "w", buffering=1)
def say(event, **facts): pipe.write(json.dumps({"event": event, **facts}) + "\\n")
"""
OPEN = """
say("opened", version="1.0", present=True)
say("planned", items=["a", "b", "c"])
def begin(n): say("started", number=n, kind="network", subject="abc"[n], policies=["p"], checks=["outputs"])
def end(n):
    result = dict(check="outputs", subject="abc"[n], policy="p", device="cpu", status="passed")
    say("finished", number=n, results=[result])
for n in range(orders["start"], 3):
    begin(n)
    if n == 1:
        BAD
    end(n)
say("done")
"""


def run(code, **options):
    return run_framework("test", "cpu", Selection(), command=(sys.executable, "-c", textwrap.dedent(START + code)), **options)


def outcome(found):
    return {result.subject: result.status for result in found.results}


@pytest.mark.parametrize(
    ("bad", "says"),
    [("os.kill(os.getpid(), 11)", "signal SIGSEGV"), ("print('oh', file=sys.stderr); os._exit(3)", "exit status 3): oh")],
)
def test_a_crash_is_a_result_and_the_others_go_on(bad, says):
    found = run(OPEN.replace("BAD", bad))
    assert outcome(found) == {"a": "passed", "b": "crashed", "c": "passed"}
    assert says in found.results[1].message
    assert found.ended == "finished"
    assert not found.ok


def test_a_hang_is_a_result_and_the_others_go_on():
    found = run(OPEN.replace("BAD", "time.sleep(600)"), item_timeout=1.0)
    assert outcome(found) == {"a": "passed", "b": "hung", "c": "passed"}


def test_a_process_that_keeps_dying_is_given_up():
    found = run(OPEN.replace("if n == 1", "if True").replace('range(orders["start"], 3)', "(0,)").replace("BAD", "os._exit(1)"))
    assert "given up" in found.ended
    assert "not run" in outcome(found).values()


def test_dying_at_the_start_is_told():
    found = run("os._exit(7)")
    assert "died while the framework was opened (exit status 7)" in found.ended
    assert not found.ok


def test_an_absent_device_is_not_run_and_never_passed():
    found = run('say("opened", version="1.0", present=False)\nsay("done")')
    assert (found.ended, found.results) == ("not run", ())


def test_an_unknown_framework_is_told():
    found = run_framework("no_such_framework", "cpu", Selection())
    assert found.ended.startswith("not usable: ModuleNotFoundError")


def test_the_whole_matrix_is_planned():
    found = list(items(Selection(), ["add", "matmul"]))
    networks = {item.subject for item in found if item.kind == "network"}
    assert networks == {"mlp", "conv", "lenet5", "residual", "transformer", "lstm", "ranking", "unet"}
    names = {name for item in found if item.subject == "mlp" for name in item.policies}
    assert len(names) == 2 * (1 + 4 * 8)
    assert {"allow bfloat16", "deny float16", "O1 float16 torch-cuda"} <= set(found[-1].policies)


def test_a_selection_narrows_the_plan():
    found = list(items(Selection(levels=("O1",), dtypes=("float16",), presets=("unamp",), networks=("mlp",)), ["add"]))
    assert [(item.kind, item.subject, list(item.policies)) for item in found] == [("network", "mlp", ["O1 float16 unamp"])]
    assert [item.subject for item in items(Selection(ops=("mat*",)), ["add", "matmul"])] == ["matmul"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--framework", "caffe"], "unknown framework 'caffe'; valid:"),
        (["--level", "O9"], "unknown level 'O9'; valid: O0, OD, O1, O2, O3"),
        (["--network", "alexnet"], "unknown network 'alexnet'"),
        (["--check", "luck"], "unknown check 'luck'"),
        (["--device", "tpu"], "unknown device 'tpu'"),
        (["compare", "no.json", "no.json"], "no.json"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    found = CliRunner().invoke(app, arguments, env={"COLUMNS": "300"})
    assert found.exit_code == 2
    assert message in found.output


def test_one_network_on_torch(tmp_path):
    chosen = ["--framework", "torch", "--device", "cpu", "--network", "mlp", "--level", "O1", "--dtype", "bfloat16"]
    found = CliRunner().invoke(app, [*chosen, "--preset", "unamp", "--output", str(tmp_path)])
    assert found.exit_code == 0, found.output
    assert "conforms" in found.output
    (ran,) = load(tmp_path / "results.json").runs
    assert {result.check for result in ran.results} == {"decisions", "outputs", "gradients", "dtypes"}
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "report.html", "junit.xml"}
