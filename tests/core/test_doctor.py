"""`unamp doctor` reports frameworks that are missing, broken, talkative or well."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commanded import invoke
from rich.console import Console

from unamp.adapter import machine, registry
from unamp.cli import commands, doctor, printing


@pytest.fixture
def framework(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Return a function that makes the framework `strange` from source code.

    Only this test can import it, and no other framework has an adapter.
    """
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(doctor, "installed", lambda: {"strange": None})

    def make(source: str) -> str:
        (tmp_path / "strange.py").write_text(source)
        importlib.invalidate_caches()
        return "strange"

    yield make
    sys.modules.pop("strange", None)


def test_a_missing_framework_comes_with_advice(framework: Callable[[str], str]) -> None:
    assert doctor.examine_all()["frameworks"] == [
        {
            "framework": "strange",
            "status": "not installed",
            "advice": "pip install 'unamp[strange]'",
        }
    ]
    assert "pip install 'unamp[strange]'" in invoke("doctor").stdout


def test_a_framework_that_cannot_be_imported_comes_with_its_error(
    framework: Callable[[str], str],
) -> None:
    framework("raise ImportError('libstrange.so: cannot open shared object file')")
    assert doctor.examine_all()["frameworks"] == [
        {
            "framework": "strange",
            "status": "not usable",
            "advice": "ImportError: libstrange.so: cannot open shared object file",
        }
    ]


def test_a_framework_that_ends_the_process_in_peace_is_not_usable(
    framework: Callable[[str], str],
) -> None:
    framework("print('bye')\nraise SystemExit(0)")
    (found,) = doctor.examine_all()["frameworks"]
    assert (found["status"], found["advice"]) == (
        "not usable",
        "importing it ended the process with status 0",
    )
    assert invoke("doctor").exit_code == 1


def test_a_framework_that_cannot_be_used_is_an_exit_status(framework: Callable[[str], str]) -> None:
    framework("raise ImportError('libstrange.so: cannot open shared object file')")
    for options in ((), ("--json",)):
        done = invoke("doctor", *options)
        assert done.exit_code == 1
        assert "libstrange.so" in done.stdout


def test_a_framework_that_crashes_is_reported(framework: Callable[[str], str]) -> None:
    framework("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    (report,) = doctor.examine_all()["frameworks"]
    assert report["status"] == "not usable"
    assert "11" in report["advice"]


def test_a_framework_that_is_well_is_reported_with_all_it_can_do(
    fake: Any, framework: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.framework = framework("print('welcome')")
    registry.register(fake)
    report = {
        "framework": "strange",
        "status": "ready",
        "version": "1.0",
        "requires": ">=1.0,<2",
        "devices": {"cpu": {"float16": "emulated", "bfloat16": "native"}, "gpu": None},
        "device names": {},
        "runtime": {"threads": 1},
        "faster": None,
        "gaps": [],
    }
    assert doctor.examine("strange") == report
    monkeypatch.setattr(commands, "examine_all", lambda: found(report))
    shown = invoke("doctor").stdout
    for said in ("strange", "1.0", "cpu", "emulated", "native", "device not present"):
        assert said in shown


def found(*reports: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the result of `doctor.examine_all` for some reports."""
    return {
        "processor": "Some processor",
        "instruction sets": ["avx", "avx2"],
        "variables": {},
        "frameworks": reports,
        **more,
    }


GAP = {
    "what": "what is " + "long " * 30,
    "reason": "because",
    "link": "https://example.org/" + "a-b/" * 30 + "end",
}
READY = {
    "framework": "strange",
    "status": "ready",
    "version": "1.0",
    "devices": {"cpu": None},
    "runtime": {"onednn_bfloat16": False, "threads": 2},
    "gaps": [GAP, {**GAP, "what": "another"}],
}


def test_the_machine_is_shown_with_what_frameworks_use_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variables = {"MKL_CBWR": "AVX2", "OMP_NUM_THREADS": "1"}
    monkeypatch.setattr(commands, "examine_all", lambda: found(READY, variables=variables))
    lines = invoke("doctor").stdout.splitlines()
    assert "the processor: Some processor" in lines
    assert "it has: avx avx2" in lines
    assert "strange computes with: onednn bfloat16: no, threads: 2" in lines
    assert "variables that change it: MKL_CBWR=AVX2 OMP_NUM_THREADS=1" in lines


def test_what_the_system_does_not_tell_is_not_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = {"framework": "strange", "status": "not installed", "advice": "pip install strange"}
    monkeypatch.setattr(
        commands, "examine_all", lambda: found(silent, processor="", **{"instruction sets": []})
    )
    lines = invoke("doctor").stdout.splitlines()
    assert "the processor: not told by this system" in lines
    assert "it has: not told by this system" in lines
    assert "variables that change it: none is set" in lines
    assert not [line for line in lines if "computes with" in line or "cannot be done" in line]


def test_gaps_are_counted_and_listed_where_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "examine_all", lambda: found(READY))
    counted = invoke("doctor").stdout
    assert "2 things cannot be done; unamp doctor --gaps lists them, with the reasons" in counted
    assert "because" not in counted
    listed = invoke("doctor", "--gaps").stdout.splitlines()
    assert "strange cannot do:" in listed
    assert f"- another: because {GAP['link']}" in listed


def test_a_terminal_of_80_columns_breaks_no_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(printing, "Console", lambda: Console(width=80, force_terminal=True))
    doctor.show_gaps([READY], listed=True)
    doctor.show_machine(found(READY, **{"instruction sets": list(machine.INSTRUCTION_SETS)}))
    lines = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in lines if len(line) > 80] == [GAP["link"]] * 2
    assert sum(line.startswith("- ") for line in lines) == 2
    assert {name for line in lines for name in line.split()} >= set(machine.INSTRUCTION_SETS)
