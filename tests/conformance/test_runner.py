"""The runner returns a result, whatever a framework's process does."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
from typer.testing import CliRunner
from unamp_conformance import gaps
from unamp_conformance.cli import app
from unamp_conformance.reading import load
from unamp_conformance.run import kept, processes
from unamp_conformance.run.plan import LISTED, Selection, items
from unamp_conformance.run.runner import OPENING_TIMEOUT, Options, run_framework
from unamp_conformance.run.runner import run as run_all
from unamp_conformance.run.tasks import Task

from unamp.vocabulary import vocabulary

START = """
import json, os, signal, sys
orders = json.loads(sys.stdin.readline())
pipe = os.fdopen(orders["pipe"], "w", buffering=1)
def say(event, **facts): pipe.write(json.dumps({"event": event, **facts}) + "\\n")
"""
OPEN = """
import pathlib
log = pathlib.Path(LOG)
version = pathlib.Path(LOG).with_name("version")
say("opened", version=version.read_text() if version.exists() else "1.0", present=True, devices=["cpu"])
item = lambda name: dict(kind="network", subject=name, policies=["p", "q"], checks=["outputs"])
say("planned", items=[item(name) for name in "abc"])
def do(name, policy):
    say("begun", subject=name, policy=policy, checks=["outputs"])
    if (name, policy) == ("b", "p"):
        BAD
    say("found", results=[dict(check="outputs", subject=name, policy=policy, device="cpu", status="passed")])
for line in sys.stdin:
    order = json.loads(line)
    with log.open("a") as file: file.write("abc"[order["item"]])
    for policy in "pq":
        if policy not in order["without"]:
            do("abc"[order["item"]], policy)
    say("finished", item=order["item"])
"""  # noqa: E501


@pytest.fixture
def log(tmp_path):
    """Return the file that lists the items that `OPEN`'s worker has begun.

    A file beside it has the version that the worker pretends to have.
    """
    return tmp_path / "log"


@pytest.fixture
def run(log):
    def started(code, device="cpu", **options):
        command = (
            sys.executable,
            "-c",
            textwrap.dedent(START + code.replace("LOG", repr(str(log)))),
        )
        return run_framework("test", device, Selection(), Options(command=command, **options))

    return started


def outcome(found):
    return {f"{result.subject}{result.policy}": result.status for result in found.results}


GOOD = {f"{name}{policy}": "passed" for name in "abc" for policy in "pq"}


def bad(what):
    return OPEN.replace("BAD", what)


def test_where_checks_may_take_long_opening_the_framework_may_too(run, monkeypatch):
    hear, given = processes.Worker.hear, []

    def heard(worker, timeout):
        given.append(timeout)
        return hear(worker, None)

    monkeypatch.setattr(processes.Worker, "hear", heard)
    assert outcome(run(bad("pass"), timeout=1800.0)) == GOOD
    assert set(given) == {1800.0}


@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("os.kill(os.getpid(), 11)", "signal SIGSEGV"),
        ("print('oh', file=sys.stderr); os._exit(3)", "exit status 3): oh"),
    ],
)
def test_a_crash_is_a_result_of_its_check_and_all_others_go_on(run, what, says, jobs):
    found = run(bad(what), jobs=jobs)
    assert outcome(found) == {**GOOD, "bp": "crashed"}
    assert says in next(result.message for result in found.results if result.status == "crashed")
    assert found.ended == "finished"
    assert not found.ok


def test_a_hang_is_a_result_of_its_check_and_all_others_go_on(run, monkeypatch):
    """The time is up only once the worker has begun the check that hangs."""
    hear, hanging, given = processes.Worker.hear, set(), set()

    def heard(worker, timeout):
        given.add(timeout)
        fact = hear(worker, 0.0 if worker in hanging else None)
        if fact and (fact["event"], fact.get("subject"), fact.get("policy")) == ("begun", "b", "p"):
            hanging.add(worker)
        return fact

    monkeypatch.setattr(processes.Worker, "hear", heard)
    assert outcome(run(bad("signal.pause()"), timeout=17.0)) == {**GOOD, "bp": "hung"}
    assert given == {OPENING_TIMEOUT, 17.0}


def test_a_process_that_keeps_dying_is_given_up(run):
    always = OPEN.replace('(name, policy) == ("b", "p")', "True").replace("BAD", "os._exit(1)")
    assert outcome(run(always)) == dict.fromkeys(GOOD, "crashed")
    found = run(always.replace("abc", "abcdefghi"))
    assert "given up: its process ended early 9 times" in found.ended
    assert list(outcome(found).values()) == ["crashed"] * 9 + ["not run"] * 5


def test_known_gaps_of_a_run_that_was_given_up_are_no_failures(run, monkeypatch):
    gap = gaps.KnownGap("outputs", ("a",), "it dies", "", ">=1")
    monkeypatch.setattr(gaps, "gaps_of", lambda framework: (gap,))
    found = run(
        OPEN.replace('(name, policy) == ("b", "p")', "True")
        .replace("BAD", "os._exit(1)")
        .replace("abc", "abcdefghi")
    )
    assert "given up" in found.ended
    assert {r.status for r in found.results if r.subject == "a"} == {"gap"}
    assert {r.status for r in found.results if r.subject == "b"} == {"crashed"}
    assert not found.problems


def test_dying_at_the_start_is_told(run):
    found = run("os._exit(7)")
    assert found.ended == "not opened: the framework's process died (exit status 7)"
    assert not found.ok


def test_an_absent_device_is_not_run_and_never_passed(run):
    found = run('say("opened", version="1.0", present=False, devices=["cpu"])')
    assert (found.ended, found.results) == ("not run", ())


def test_a_framework_is_not_opened_for_a_device_that_it_has_not(log):
    command = (
        sys.executable,
        "-c",
        START + OPEN.replace("LOG", repr(str(log))).replace("BAD", "pass"),
    )
    report = run_all(
        ["test"], ["cpu", "gpu", "second"], Selection(), Options(jobs=3, command=command)
    )
    assert {run.device: (run.ended, run.version) for run in report.runs} == {
        "cpu": ("finished", "1.0"),
        "gpu": ("not run", "1.0"),
        "second": ("not run", "1.0"),
    }
    assert sorted(log.read_text()) == ["a", "b", "c"]


def test_an_unknown_framework_is_told():
    found = run_framework("no_such_framework", "cpu", Selection())
    assert found.ended.startswith("not usable: ModuleNotFoundError")


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_several_processes_share_a_framework(run, log, tmp_path, device):
    """A worker that cannot open is left out."""
    # The first worker that has an item waits for the second.
    meeting = tmp_path / "meeting"
    os.mkfifo(meeting)
    meets = f"""
def meet():
    try:
        os.mkdir({str(tmp_path / "first")!r})
    except FileExistsError:
        open({str(meeting)!r}, "w").close()
    else:
        open({str(meeting)!r}).close()
"""
    many = OPEN.replace('for name in "abc"', "for name in map(str, range(200))").replace(
        '"abc"[order["item"]]', 'str(order["item"])'
    )
    noted = meets + many.replace("BAD", "pass").replace(
        'file.write(str(order["item"]))', 'file.write(f"{os.getpid()}\\n")'
    )
    both = noted.replace(
        "for line in sys.stdin:",
        "for number, line in enumerate(sys.stdin):\n    if not number: meet()",
    )
    assert set(outcome(run(both, device, jobs=2)).values()) == {"passed"}
    assert len(set(log.read_text().split())) == 2
    log.unlink()
    (tmp_path / "first").rmdir()
    second = 'if log.exists(): meet(); os._exit(1)\nlog.write_text("")\n'
    found = run(both.replace("version = pathlib", second + "version = pathlib", 1), device, jobs=2)
    assert (found.ended, len(found.results), found.ok) == ("finished", 400, True)
    assert len(set(log.read_text().split())) == 1


def test_a_worker_takes_memory_as_it_needs_it_unless_the_user_says_otherwise(run, monkeypatch):
    names = ("XLA_PYTHON_CLIENT_PREALLOCATE", "TF_FORCE_GPU_ALLOW_GROWTH")
    told = bad("pass").replace(
        "present=True", f"present=True, facts={{n: os.environ[n] for n in {names}}}"
    )
    for name in names:
        monkeypatch.delenv(name, raising=False)
    assert run(told).facts == {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "true")
    assert run(told).facts == {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "true",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }


def interrupted(run, log, tmp_path):
    """Run until the process ends with the second item, and do not restart it.

    The kept results are as if the whole run had been killed.
    """
    kept = tmp_path / "kept"
    run(bad("os._exit(1)"), keep=kept)
    (file,) = kept.iterdir()
    lines = file.read_text().splitlines()
    # the key, one item, and half of another
    file.write_text("\n".join(lines[:2]) + "\n" + lines[2][:20])
    log.unlink()
    return kept


def test_an_interrupted_run_goes_on_where_it_was(run, log, tmp_path):
    kept = interrupted(run, log, tmp_path)
    found = run(bad("os._exit(1)"), keep=kept, resume=True)
    assert outcome(found) == {**GOOD, "bp": "crashed"}
    assert log.read_text() == "bbc"  # a crashed item is not kept, and is tried again


@pytest.mark.parametrize(
    "change", ["version", "setting", "machine", "plan", "not asked for", "damaged", "foreign"]
)
def test_results_of_another_run_are_never_used(run, log, tmp_path, monkeypatch, change):
    kept = interrupted(run, log, tmp_path)
    (file,) = kept.iterdir()
    code = bad("pass")
    if change == "version":
        log.with_name("version").write_text("1.1")
    elif change == "setting":
        monkeypatch.setenv("UNAMP_TORCH_COMPILED", "another")
    elif change == "machine":
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    elif change == "plan":
        code = code.replace('policies=["p", "q"]', 'policies=["q", "p"]')
    elif change == "damaged":
        file.write_text(file.read_text()[5:])
    elif change == "foreign":
        file.write_text(json.dumps({"key": "0" * 64}) + "\n" + file.read_text().partition("\n")[2])
    found = run(code, keep=kept, resume=change != "not asked for")
    assert outcome(found) == GOOD
    assert log.read_text() == "abc"


def test_other_code_is_another_run(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "unamp_conformance_pretended"
    package.mkdir()
    digests = set()
    for name, text in (("__init__.py", ""), ("__init__.py", "x = 1"), ("data.toml", "x = 1")):
        (package / name).write_text(text)
        digests.add(kept._digest(package.name))
    assert len(digests) == 3


#: The command; it gets Ctrl-C's signal as soon as it has kept three results.
INTERRUPTED = """
import signal, sys, threading
from unamp_conformance.cli import app
from unamp_conformance.run.kept import Kept
signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in what a shell runs in the background
add, kept = Kept.add, []
def adding(self, item, results):
    add(self, item, results)
    kept.append(item)
    if len(kept) == 3:
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
Kept.add = adding
sys.exit(app())
"""  # noqa: E501


def test_the_whole_run_can_be_interrupted(tmp_path):
    """Ctrl-C ends every process and says how to go on; finished results are kept."""
    arguments = ["--framework", "torch", "--device", "cpu", "--output", str(tmp_path)]
    arguments += ["--op", "ab*", "--op", "ac*", "--op", "ad*", "--preset", "unamp", "-j", "1"]
    process = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, *arguments], capture_output=True, text=True, check=False
    )
    assert process.returncode == 130, process.stderr
    assert "--resume" in process.stderr
    file = tmp_path / "unfinished" / "torch-cpu.jsonl"
    before = file.read_text().count("\n") - 1
    command = [sys.executable, "-m", "unamp_conformance", *arguments, "--resume", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["ok"]
    assert before >= 2
    assert not file.exists()


def test_the_whole_matrix_is_planned():
    found = list(items(Selection(), ["add", "matmul"]))
    networks = {item.subject for item in found if item.kind == "network"}
    assert networks == set("mlp conv lenet5 residual transformer lstm ranking unet".split())
    names = {name for item in found if item.subject == "mlp" for name in item.policies}
    assert len(names) == 2 * (1 + 4 * 8)
    assert {"allow bfloat16", "deny float16", "O1 float16 unamp", "O1 bfloat16 native"} <= set(
        found[-1].policies
    )


def test_casts_are_probed_under_no_list_of_their_own():
    found = list(
        items(
            Selection(ops=("cast", "bitc*")),
            ["add", "bitcast", "cast"],
            tensor_kinds={"kind": ["add", "cast"]},
        )
    )
    assert {item.subject for item in found if item.kind == "operation"} == {"bitcast", "cast"}
    assert not [
        name for item in found for name in item.policies if name.startswith(("allow", "deny"))
    ]
    assert all(item.policies for item in found)


def test_a_thorough_run_looks_at_every_rule_and_every_list():
    ops = [op.name for op in vocabulary().values()]
    quick, full = (
        [i for i in items(Selection(full=full), ops) if i.kind == "operation"]
        for full in (False, True)
    )
    seen = set()
    for few, all_ in zip(quick, full, strict=True):
        assert set(few.policies) < set(all_.policies)
        rules = [
            {
                p.decide(few.subject)
                for name, p in item.policies.items()
                if name.startswith("O1") and p.preset != "native"
            }
            for item in (few, all_)
        ]
        assert rules[0] == rules[1]
        seen |= set(few.policies)
    assert seen == {
        f"{policy} {dtype}{preset}"
        for dtype in ("float16", "bfloat16")
        for policy, preset in (
            *(("allow", ""), ("deny", ""), ("O2", " unamp"), ("O3", " unamp")),
            *(("O1", f" {name}") for name in LISTED),
        )
    }
    assert (
        2 * sum(len(item.policies) for item in quick) < sum(len(item.policies) for item in full) / 3
    )


def test_where_dtypes_cost_time_a_thorough_run_gives_each_subject_one():
    ops = ["add", "matmul", "exp"]
    checks = ("decisions", "probe", "training")
    quick, full = (
        list(items(Selection(checks=checks, full=full), ops, sparing=True))
        for full in (False, True)
    )
    kinds = {(item.kind, item.subject) for item in full}
    assert {(item.kind, item.subject) for item in quick if item.kind != "training"} <= kinds
    for kind in ("operation", "network", "training"):
        met = {}
        for item in quick:
            if item.kind == kind:
                met.setdefault(item.subject, set()).update(
                    policy.dtype for policy in item.policies.values()
                )
        assert {len(dtypes) for dtypes in met.values()} == {1}
        assert set().union(*met.values()) == {"float16", "bfloat16"}
    assert full == list(items(Selection(checks=checks, full=True), ops))
    (chosen,) = items(
        Selection(ops=("add",), dtypes=("float16",), checks=("probe",)), ops, sparing=True
    )
    assert {policy.dtype for policy in chosen.policies.values()} == {"float16"}


def test_a_selected_preset_is_run_on_every_operation():
    found = list(items(Selection(presets=("apex",)), ["add", "matmul"]))
    assert all(
        {"O1 float16 apex", "O1 bfloat16 apex"} <= set(i.policies)
        for i in found
        if i.kind == "operation"
    )


def test_a_selection_narrows_the_plan():
    found = list(
        items(
            Selection(levels=("O1",), dtypes=("float16",), presets=("unamp",), networks=("mlp",)),
            ["add"],
        )
    )
    assert [(item.kind, item.subject, list(item.policies)) for item in found] == [
        ("network", "mlp", ["O1 float16 unamp"])
    ]
    assert [item.subject for item in items(Selection(ops=("mat*",)), ["add", "matmul"])] == [
        "matmul"
    ]
    both = Selection(
        levels=("O1",), dtypes=("float16",), presets=("unamp",), networks=("mlp",), ops=("mat*",)
    )
    assert [item.subject for item in items(both, ["add", "matmul"])] == ["mlp", "matmul"]


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
    chosen = "--framework torch --device cpu --network mlp --level O1 --dtype bfloat16".split()
    found = CliRunner().invoke(app, [*chosen, "--preset", "unamp", "--output", str(tmp_path)])
    assert found.exit_code == 0, found.output
    assert "conforms" in found.output
    (ran,) = load(tmp_path / "results.json").runs
    assert ran.facts["threads"] == int(ran.variables["OMP_NUM_THREADS"])
    assert ran.facts["capability"] in ("DEFAULT", "AVX2", "AVX512")
    assert {result.check for result in ran.results} == {
        "decisions",
        "outputs",
        "gradients",
        "dtypes",
    }
    assert {path.name for path in tmp_path.iterdir()} == {
        "results.json",
        "report.html",
        "junit.xml",
    }


def test_a_process_goes_on_with_the_network_that_it_has_compiled():
    task = Task("test", "cpu", Selection())
    items = [
        {"kind": "network", "subject": name, "policies": ["p"], "checks": ["outputs"]}
        for name in "aabbc"
    ]
    task.hear(None, {"event": "planned", "items": items})
    first, second = task.take(), task.take()
    assert (first, second) == (0, 2)
    for item in (first, second):
        task.hear(item, {"event": "finished"})
    assert task.take(second) == 3
    assert task.take(first) == 1
    assert [task.take(3), task.take(1)] == [4, None]


def test_what_was_drawn_is_told_although_a_second_process_opens_later():
    task = Task("test", "cpu", Selection(sample=1))
    opened = {"event": "opened", "version": "1", "present": True, "facts": {"build": "cpu"}}
    for fact in (opened, {"event": "planned", "items": [], "draw": "0 of 1 items, seed 0"}, opened):
        task.hear(None, fact)
    assert task.outcome().facts == {"build": "cpu", "drawn": "0 of 1 items, seed 0"}
