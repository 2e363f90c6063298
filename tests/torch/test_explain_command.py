"""`unamp explain` with the preset `native` tells the decisions of the installed PyTorch."""

from __future__ import annotations

import pytest
import torch
from typer.testing import CliRunner

from unamp.cli.commands import app
from unamp.presets import preset_versions

pytestmark = pytest.mark.beside_kernels


def explained(*arguments: str) -> str:
    done = CliRunner().invoke(
        app, ["explain", "--framework", "torch", "--device", "cpu", *arguments]
    )
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()[0]


def test_it_says_whose_lists_are_shown() -> None:
    assert explained("--preset", "native") == (
        f"preset native: shown by the lists of torch-cpu@{preset_versions('torch-cpu')[-1]}, "
        f"the newest; in force are those of torch {torch.__version__}"
    )
    assert explained("--preset", "torch-cpu").startswith("operation")
    assert explained("--preset", "native", "--level", "O0").startswith("operation")
