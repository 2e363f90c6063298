"""Type checkers refuse the arguments that no function takes, and no others."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from documents import ROOT

import unamp
from unamp.dtypes import POLICY_DTYPES
from unamp.presets import preset_names
from unamp.typing import DtypeName, Level, PresetName

CALLS = Path(__file__).with_name("typed_arguments.py")


def _mypy(file: Path) -> set[int]:
    """Return the lines that mypy finds errors in."""
    options = "--strict", "--ignore-missing-imports", "--follow-imports=silent", f"--cache-dir={file.parent}"
    said = _run("mypy", *options, str(file))
    found = re.findall(rf"{re.escape(file.name)}:(\d+): error", said)
    assert found, said
    return set(map(int, found))


def _pyright(file: Path) -> set[int]:
    """Return the lines that pyright finds errors in."""
    settings = file.with_name("pyrightconfig.json")
    settings.write_text(json.dumps({"typeCheckingMode": "strict", "include": [file.name], "extraPaths": [str(ROOT)]}), "utf-8")
    said = json.loads(_run("basedpyright", "--outputjson", "--project", str(settings), "--pythonpath", sys.executable))
    assert said["summary"]["filesAnalyzed"] == 1, said
    return {each["range"]["start"]["line"] + 1 for each in said["generalDiagnostics"] if each["severity"] == "error"}


def _run(checker: str, *arguments: str) -> str:
    command = [sys.executable, "-m", checker, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT).stdout


@pytest.mark.parametrize("errors", [_mypy, _pyright], ids=["mypy", "pyright"])
def test_a_checker_refuses_bad_arguments_and_takes_good_ones(errors: Callable[[Path], set[int]], tmp_path: Path) -> None:
    lines = CALLS.read_text("utf-8").splitlines()
    bad = {number for number, line in enumerate(lines, 1) if "# type: ignore" in line}
    laid_bare = tmp_path / "calls.py"
    laid_bare.write_text("\n".join(line.partition("  # type: ignore")[0] for line in lines), "utf-8")
    assert errors(laid_bare) == bad


def test_types_list_what_is_valid_at_run_time() -> None:
    assert get_args(Level) == tuple(unamp.LEVELS)
    assert get_args(PresetName) == preset_names()
    assert get_args(DtypeName) == POLICY_DTYPES
