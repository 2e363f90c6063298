"""`unamp doctor` on frameworks that are missing, broken, talkative or well."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from unamp.adapter import registry
from unamp.cli import commands, doctor


@pytest.fixture
def framework(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Makes a framework of some source code that only this test can import, and the only one that has an adapter."""
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
    assert doctor.examine_all() == [
        {"framework": "strange", "status": "not installed", "advice": "pip install 'unamp[strange]'"}
    ]
    assert "pip install 'unamp[strange]'" in CliRunner().invoke(commands.app, ["doctor"]).stdout


def test_a_framework_that_cannot_be_imported_comes_with_its_error(framework: Callable[[str], str]) -> None:
    framework("raise ImportError('libstrange.so: cannot open shared object file')")
    assert doctor.examine_all() == [
        {
            "framework": "strange",
            "status": "not usable",
            "advice": "ImportError: libstrange.so: cannot open shared object file",
        }
    ]


def test_a_framework_that_crashes_is_reported(framework: Callable[[str], str]) -> None:
    framework("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    (report,) = doctor.examine_all()
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
        "gaps": [],
    }
    assert doctor.examine("strange") == report
    monkeypatch.setattr(commands, "examine_all", lambda: [report])
    shown = CliRunner().invoke(commands.app, ["doctor"]).stdout
    for said in ("strange", "1.0", "cpu", "emulated", "native", "device not present"):
        assert said in shown
