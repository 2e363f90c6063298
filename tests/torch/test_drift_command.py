"""`unamp drift` traces the operations of a user's own function."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from unamp.cli.commands import app

pytestmark = pytest.mark.beside_kernels

SCRIPT = """
import torch
import torch.nn.functional as F

import unamp

x = torch.ones(2, 4)


def step():
    with unamp.autocast("cpu", "bfloat16"):
        for _ in range(2):
            F.rms_norm(x @ x.T, (2,))


def product():
    x @ x.T


def nothing():
    pass


def broken():
    raise OSError("of the script's own")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "training.py"
    path.write_text(SCRIPT, "utf-8")
    return path


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["drift", *map(str, arguments)])


def test_only_what_the_function_calls_is_shown(script: Path) -> None:
    found = json.loads(run("torch==2.8", "torch==2.15", f"{script}:step", "--json").output)[
        "presets"
    ]
    assert {
        name: {op: c["times"] for op, c in each["operations"].items()}
        for name, each in found.items()
    } == {
        "torch-cuda": {"rms_norm": 2},
        "torch-cpu": {},
        "torch-mps": {},
    }
    said = run("torch==2.8", "torch==2.15", f"{script}:product").output
    assert (
        "0 operations change from torch==2.8 to torch==2.15 at O1 in float16, of the 1 that" in said
    )


def test_a_function_that_calls_nothing_is_an_error(script: Path) -> None:
    done = run("torch==2.8", "torch==2.15", f"{script}:nothing")
    assert done.exit_code == 2
    assert "called no operation of a framework" in " ".join(done.output.split())


def test_an_error_of_the_functions_own_is_its_own(script: Path) -> None:
    assert isinstance(run("torch==2.8", "torch==2.15", f"{script}:broken").exception, OSError)
