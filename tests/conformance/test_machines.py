"""`make conformance-machines` runs for every framework, on a sample of its checks.

The report that it makes of its findings is tested, too.
"""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Two networks and fifteen operations, under the default preset and the framework's own AMP.
NETWORKS = ("transformer", "lstm")
OPS = (
    "add bmm conv2d correlation cosh exp layer_norm linear lstm matmul "
    "mean mse_loss rnn softmax sum"
).split()
SAMPLE = ["--level", "O1", "--preset", "unamp", "--preset", "native"]
SAMPLE += [word for name in NETWORKS for word in ("--network", name)] + [
    word for op in OPS for word in ("--op", op)
]


@pytest.fixture(scope="module")
def machines():
    sys.path.insert(0, str(ROOT / "conformance"))  # a script finds the modules beside it
    spec = importlib.util.spec_from_file_location(
        "conformance_machines", ROOT / "conformance/machines.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look the module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def settings(machines):
    return machines.read(machines.SETTINGS.read_text("utf-8"))


@pytest.mark.parametrize("framework", ["torch", "paddle", "mindspore", "tensorflow"])
def test_every_framework_conforms_with_its_plainest_kernels(machines, settings, framework):
    if framework in machines.without_wheels():
        pytest.skip(f"{framework} offers no wheel for this Python")
    found = machines.examined(framework, settings["plainest"], *SAMPLE)
    assert machines.sentence({**found, "checks": {}}) == "conforms"
    # of some 100; a preset may leave some to the framework's own AMP
    assert found["checks"]["passed"] >= 70
    assert 0.0 < found["largest error"] <= 1.0
    told = {
        "torch": {"capability": "DEFAULT", "onednn_bfloat16": False},
        "tensorflow": {"onednn": False},
    }
    assert told.get(framework, {}).items() <= found["computes with"].items()


DYING = """
import os, sys
if "unamp_conformance.run.worker" in sys.orig_argv:
    os.kill(os.getpid(), WHICH)
"""


@pytest.mark.parametrize(
    ("number", "listed", "result", "says"),
    [
        (
            4,
            (),
            "fails",
            "dies of SIGILL; not opened: the framework's process died (signal SIGILL)",
        ),
        (4, ("SIGILL", "no such kernel"), "dies", "SIGILL: no such kernel"),
        (11, ("SIGILL", "no such kernel"), "fails", "dies of SIGSEGV; not opened"),
    ],
)
def test_a_framework_that_dies_is_a_row_that_names_the_signal(
    machines, tmp_path, number, listed, result, says
):
    (tmp_path / "sitecustomize.py").write_text(DYING.replace("WHICH", str(number)))
    dies = {"torch": machines.Death(*listed)} if listed else {}
    setting = machines.Setting("deadly", "none", {"torch": {"PYTHONPATH": str(tmp_path)}}, dies)
    found = machines.examined("torch", setting, "--op", "add")
    assert found["result"] == result
    assert found["message"].startswith(says)


def judged(machines, *unexpected, ended="finished", listed=("SIGSEGV", "no kernel")):
    said = {
        "ended": ended,
        "unexpected": [{"status": status, "message": message} for status, message in unexpected],
    }
    row = {
        "result": "fails" if unexpected else "conforms",
        "message": "" if ended == "finished" else ended,
        "wrong": ["x"],
    }
    return machines._judged(row, said, listed and machines.Death(*listed))


DIED = ("crashed", "the framework's process died (signal SIGSEGV): oh")


def test_only_what_is_listed_is_expected_of_a_framework_that_dies(machines):
    ended = "given up: its process ended early 9 times"
    assert judged(machines, DIED, DIED, ended=ended) == {
        "result": "dies",
        "message": "SIGSEGV: no kernel",
        "wrong": [],
    }
    assert judged(machines, DIED, listed=None)["message"] == "dies of SIGSEGV"
    another = judged(machines, DIED, ("failed", "far off"))
    assert (another["result"], another["message"]) == ("fails", "dies of SIGSEGV")
    both = judged(machines, DIED, ("crashed", "the framework's process died (signal SIGFPE)"))
    assert (both["result"], both["message"]) == ("fails", "dies of SIGFPE, SIGSEGV")
    hung = judged(machines, DIED, ("hung", "not finished within 300 seconds"))
    assert hung["result"] == "fails"


def test_a_listed_death_that_does_not_come_is_told(machines):
    found = judged(machines)
    assert (found["result"], found["message"]) == (
        "conforms",
        "although listed as dying of SIGSEGV: no kernel",
    )


def test_a_run_that_says_nothing_is_a_row(machines):
    row = {"result": "conformance fails to run", "message": "signal SIGKILL"}
    assert machines._judged(row, {}, None) == row
    assert (
        machines._judged(row, {}, machines.Death("SIGSEGV", "no kernel"))["result"]
        == "conformance fails to run"
    )


def test_arguments_choose(machines, settings):
    everything = [(framework, setting.name) for framework, setting in machines.chosen([], settings)]
    assert len(everything) == sum(len(setting.variables) for setting in settings.values())
    assert {framework for framework, _ in everything} == set(machines.FRAMEWORKS)
    assert [(f, s.name) for f, s in machines.chosen(["default", "torch"], settings)] == [
        ("torch", "default")
    ]
    assert {s.name for f, s in machines.chosen(["paddle"], settings)} == {
        setting.name for setting in settings.values() if "paddle" in setting.variables
    }
    assert [f for f, _ in machines.chosen(["as-it-is"], settings)] == list(machines.FRAMEWORKS)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["torch", "riscv"],
            (
                "unknown setting or framework 'riscv'; frameworks: torch, paddle, "
                "mindspore, tensorflow, jax; settings: "
            ),
        ),
        (["paddle", "default"], "default says nothing to paddle"),
    ],
)
def test_what_is_unknown_is_named(machines, capsys, arguments, says):
    assert machines.main(arguments) == 2
    assert capsys.readouterr().err.startswith(says)


GOOD = """
[calm]
stands_for = "a calm machine"
[calm.variables]
torch = {MKL_CBWR = "COMPATIBLE"}
paddle = {}
[calm.dies.paddle]
signal = "SIGILL"
reason = "no kernel"
where = {avx2 = true}
run = ["--dtype", "float16"]
"""

EMULATED = (
    GOOD
    + """
[calm.emulated]
architecture = "aarch64"
model = "max"
has = "asimd sve"
checks = {torch = 9, paddle = 8}
tests = {torch = 7, paddle = 6}
"""
)


def test_a_file_of_settings_is_read(machines):
    death = machines.Death("SIGILL", "no kernel", {"avx2": True}, ("--dtype", "float16"))
    assert machines.read(GOOD) == {
        "calm": machines.Setting(
            "calm",
            "a calm machine",
            {"torch": {"MKL_CBWR": "COMPATIBLE"}, "paddle": {}},
            {"paddle": death},
        )
    }


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("[calm]", "[calm"), "no TOML"),
        (("calm", "torch"), "torch: a setting cannot be called like a framework"),
        (('stands_for = "a calm machine"', ""), "calm: needs 'stands_for'"),
        (('"a calm machine"', '""'), "calm: stands_for must be text, not ''"),
        (('"a calm machine"', "3"), "calm: stands_for must be text, not 3"),
        (
            ("stands_for", "stand_for"),
            "calm: unknown key 'stand_for'; valid: stands_for, variables, dies, emulated, device",
        ),
        (
            ("[calm.variables]", 'device = "npu"\n[calm.variables]'),
            "calm: unknown device 'npu'; valid: cpu, gpu",
        ),
        (
            ("paddle = {}", "caffe = {}"),
            "calm: unknown framework 'caffe'; valid: torch, paddle, mindspore, tensorflow, jax",
        ),
        (("paddle = {}", "paddle = 1"), "calm, paddle: must be a table of variables, not 1"),
        (('"COMPATIBLE"', "1"), "calm, torch, MKL_CBWR: must be text, not 1"),
        (("MKL_CBWR", "PATH"), "calm, torch: PATH is not recorded with a run"),
        (("paddle = {}", ""), "calm: 'paddle' dies, but has no variables; valid: torch"),
        (('signal = "SIGILL"', ""), "calm, dies, paddle: needs 'signal'"),
        (
            ('signal = "SIGILL"', "signals = 1"),
            "calm, dies, paddle: unknown key 'signals'; valid: signal, reason, where, run",
        ),
        (("avx2 =", "avx3 ="), "calm, dies, paddle: where asks for 'avx3'; valid: sse4_1, "),
        (
            ("avx2 = true", "avx2 = 1"),
            "calm, dies, paddle: where, avx2: must be true or false, not 1",
        ),
        (('"--dtype"', "1"), "calm, dies, paddle: run must be texts, not 1"),
        (
            ('["--dtype", "float16"]', '"float16"'),
            "calm, dies, paddle: run must be a list, not 'float16'",
        ),
        (
            ("aarch64", "riscv"),
            "calm, emulated: unknown architecture 'riscv'; valid: x86_64, aarch64",
        ),
        (("asimd", "simd"), "calm, emulated: has 'simd'; valid: sse4_1, "),
        (
            ("model", "modell"),
            "calm, emulated: unknown key 'modell'; valid: architecture, model, has, checks, tests",
        ),
        (
            ("torch = 9, ", ""),
            (
                "calm, emulated, checks: "
                "must be of the frameworks that it has variables for: torch, paddle"
            ),
        ),
        (("torch = 7", "torch = 0"), "calm, emulated, tests: must be numbers of 1 and more, not 0"),
    ],
)
def test_a_wrong_file_of_settings_is_refused(machines, change, says):
    with pytest.raises(machines.BadSettings) as caught:
        machines.read(EMULATED.replace(*change))
    assert str(caught.value).startswith(says)


def test_an_emulated_processor_has_instruction_sets_of_its_own(machines):
    setting = machines.read(EMULATED)["calm"]
    assert setting.emulated == machines.Emulated(
        "aarch64", "max", ("asimd", "sve"), {"torch": 9, "paddle": 8}, {"torch": 7, "paddle": 6}
    )
    assert setting.death("paddle") is None  # it has no AVX2, whatever this machine has
    assert machines.where(setting.emulated).endswith("aarch64 (asimd sve)")
    assert machines.where(setting.emulated).startswith("max, emulated by qemu, ")


def test_a_processor_that_cannot_be_emulated_is_not_run_and_never_passed(
    machines, tmp_path, monkeypatch, capsys
):
    def missing(emulated):
        raise machines.NotHere("qemu-x86_64 is missing")

    monkeypatch.setattr(machines, "RESULTS", tmp_path / "machines.json")
    monkeypatch.setattr(machines, "environment", missing)
    for arguments in (["torch", "amd-avx2"], ["torch", "amd-avx2", "--short"]):
        assert machines.main(arguments) == 1
        assert "not run: qemu-x86_64 is missing" in capsys.readouterr().out
    assert machines.main(["torch", "amd-avx2", "--short", "--where-possible"]) == 0
    assert capsys.readouterr().out == "not run: qemu-x86_64 is missing\n"
    assert not machines.RESULTS.exists()


def test_a_machine_without_a_gpu_runs_nothing_on_one(
    machines, settings, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(machines, "RESULTS", tmp_path / "machines.json")
    monkeypatch.setattr(machines, "gpus", lambda: "")
    assert machines.main(["torch", "gpu"]) == 1
    assert capsys.readouterr().out == "torch under gpu: not run: this machine has no GPU\n"
    assert not machines.RESULTS.exists()
    monkeypatch.setattr(machines, "gpus", lambda: "a GPU, 5.1")
    assert machines.where(device="gpu") == f"a GPU, 5.1, beside {machines.where()}"


def test_a_test_that_fails_on_an_emulated_processor_fails_its_row(machines, settings, monkeypatch):
    monkeypatch.setattr(machines, "environment", lambda emulated: "python")
    row = {"result": "conforms", "message": "", "wrong": [], "sample": "9 of 90 items, seed 3"}
    monkeypatch.setattr(machines, "examined", lambda *arguments: dict(row))
    counts = {"passed": 58, "failed": 0, "skipped": 2, "of": 1530, "wrong": []}
    monkeypatch.setattr(machines, "drawn_tests", lambda *arguments, **more: counts)
    found = machines.sampled("torch", settings["amd-avx2"], 3)
    assert (found["result"], found["sample"]) == (
        "conforms",
        "9 of 90 items, seed 3; 60 of 1,530 tests: 58 passed, 2 skipped",
    )
    counts |= {"passed": 57, "failed": 1, "wrong": ["tests.torch.test_x.test_y"]}
    assert machines.sampled("torch", settings["amd-avx2"], 3) == {
        "result": "fails", "message": "", "wrong": ["tests.torch.test_x.test_y"],
        "sample": "9 of 90 items, seed 3; 60 of 1,530 tests: 57 passed, 1 failed, 2 skipped",
    }  # fmt: skip
    assert machines.sampled("torch", settings["amd-avx2"], 3, short=True) == row


def test_a_death_is_of_some_processors(machines, monkeypatch):
    setting = machines.read(GOOD)["calm"]
    for there, expected in (
        ({"avx2": True}, setting.dies["paddle"]),
        ({"avx2": False}, None),
        ({}, None),
    ):
        monkeypatch.setattr(machines.machine, "instruction_sets", lambda there=there: there)
        assert setting.death("paddle") == expected
        assert setting.death("torch") is None


def test_a_setting_for_nobody_is_refused(machines):
    with pytest.raises(
        machines.BadSettings, match="calm: variables names no framework; valid: torch"
    ):
        machines.read('[calm]\nstands_for = "none"\n[calm.variables]\n')


def test_every_setting_was_run_and_none_fails(machines, settings):
    known = json.loads(machines.RESULTS.read_text("utf-8"))
    rows = {
        (framework, name): found
        for framework, found_of in known.items()
        for name, found in found_of.items()
    }
    every = {(framework, setting.name) for framework, setting in machines.chosen([], settings)}
    assert every >= set(rows)
    # Emulated runs take too long to repeat after every change, and not every machine has a GPU: the
    # table names the runs that were made, with their commits.
    rare = {
        name for name, setting in settings.items() if setting.emulated or setting.device == "gpu"
    }
    assert {name for _, name in every - set(rows)} <= rare
    assert {
        name: found["result"]
        for name, found in rows.items()
        if found["result"] not in ("conforms", "dies")
    } == {}
    for (framework, name), found in rows.items():
        assert found["variables"] == settings[name].variables[framework], (framework, name)
        assert found["result"] == "conforms" or framework in settings[name].dies


def test_the_table_in_the_docs_is_the_generated_one(machines):
    known = json.loads(machines.RESULTS.read_text("utf-8"))
    assert machines.TABLE.read_text("utf-8") == machines.table(known)


def test_a_row_says_what_was_counted(machines):
    found = {
        "result": "fails", "message": "dies of SIGFPE",
        "checks": {"passed": 7, "gap": 2, "failed": 1, "crashed": 3, "not run": 5},
        "wrong": ["probe/add|or"], "version": "1.0", "variables": {},
        "computes with": {"onednn": False, "threads": 2}, "largest error": 0.5, "seconds": 61.4,
        "where": "here", "sample": "all", "commit": "0123abc",
    }  # fmt: skip
    line = machines._line("torch", "calm", found, 1)
    said = "fails: dies of SIGFPE; 5 not run; first: probe/add\\|or"
    assert line == (
        f"| torch 1.0 | calm | {said} | 7 | 2 | 4 | all | 0.50 | 61 | "
        "onednn: no, threads: 2 | 1 | 0123abc |"
    )


def test_a_framework_that_is_not_installed_is_left_out_and_others_go_on(
    machines, settings, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(machines, "RESULTS", tmp_path / "results/machines.json")
    monkeypatch.setattr(machines, "TABLE", tmp_path / "machines.md")
    monkeypatch.setattr(machines, "find_spec", lambda name: None if name == "paddle" else name)
    monkeypatch.setattr(machines, "examined", lambda framework, setting, *_: {
        "result": "conforms", "message": "", "checks": {"passed": 9}, "version": "1",
        "variables": {}, "computes with": {}, "largest error": None, "seconds": 1.0,
        "where": "here", "sample": "all", "commit": "0123abc",
    })  # fmt: skip
    assert machines.main(["plainest"]) == int("paddle" not in machines.without_wheels())
    said = capsys.readouterr().out
    assert "paddle under plainest: left out: it is not installed" in said
    assert "tensorflow under plainest: conforms: 9 passed" in said
    assert set(json.loads(machines.RESULTS.read_text("utf-8"))) == {
        "torch",
        "mindspore",
        "tensorflow",
    }
    assert machines.TABLE.read_text("utf-8").count("| plainest | conforms |") == 3
    monkeypatch.setattr(machines, "examined", lambda framework, setting, *_: {
        **json.loads(machines.RESULTS.read_text("utf-8"))["torch"]["plainest"], "result": "fails",
    })  # fmt: skip
    assert machines.main(["torch", "plainest"]) == 1
