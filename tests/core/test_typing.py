"""Type checkers refuse the arguments that no function takes, and no others."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import get_args

from documents import ROOT
from elsewhere import ended

import unamp
from unamp.dtypes import POLICY_DTYPES
from unamp.presets import preset_names
from unamp.typing import DtypeName, Level, PresetName

CALLS = ROOT / "tests" / "core" / "typed_arguments.py"


def errors(file: Path) -> set[int]:
    """Return the lines in which pyright finds errors."""
    settings = file.with_name("pyrightconfig.json")
    settings.write_text(
        json.dumps(
            {"typeCheckingMode": "strict", "include": [file.name], "extraPaths": [str(ROOT)]}
        ),
        "utf-8",
    )
    command = (
        "-m",
        "basedpyright",
        "--outputjson",
        "--project",
        settings,
        "--pythonpath",
        sys.executable,
    )
    said = json.loads(ended(*command).stdout)
    assert said["summary"]["filesAnalyzed"] == 1, said
    return {
        each["range"]["start"]["line"] + 1
        for each in said["generalDiagnostics"]
        if each["severity"] == "error"
    }


def test_pyright_refuses_bad_arguments_and_takes_good_ones(tmp_path: Path) -> None:
    lines = CALLS.read_text("utf-8").splitlines()
    bad = {number for number, line in enumerate(lines, 1) if "# type: ignore" in line}
    laid_bare = tmp_path / "calls.py"
    laid_bare.write_text(
        "\n".join(line.partition("  # type: ignore")[0] for line in lines), "utf-8"
    )
    assert errors(laid_bare) == bad


def test_mypy_reads_the_same_calls_with_every_test() -> None:
    """`make lint` has mypy refuse each bad call that no comment lets through.

    mypy also refuses a comment that lets nothing through.
    """
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["mypy"]
    assert settings["strict"] is True
    assert str(CALLS.relative_to(ROOT)) in settings["files"]
    assert "warn_unused_ignores" not in settings
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert re.search(r"^test: lint ", makefile, re.M)
    assert re.search(r"^lint: .*\n(\t.*\n)*\t\S+/mypy\n", makefile, re.M)


def test_types_list_what_is_valid_at_run_time() -> None:
    assert get_args(Level) == tuple(unamp.LEVELS)
    assert get_args(PresetName) == preset_names()
    assert get_args(DtypeName) == POLICY_DTYPES
