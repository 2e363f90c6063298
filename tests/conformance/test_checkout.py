"""The suite runs from a checkout that is not installed, with a framework's packages alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: The code with which every process of the test starts. A hidden name is absent, as a package and
#: as a distribution.
HIDING = """
import importlib.machinery, importlib.metadata

HIDDEN = ("ml_dtypes", "hypothesis", "paddle", "mindspore", "tensorflow", "jax")
find_spec = importlib.machinery.PathFinder.find_spec
importlib.machinery.PathFinder.find_spec = classmethod(
    lambda cls, name, *args: None if name.partition(".")[0] in HIDDEN else find_spec(name, *args)
)
found = importlib.metadata.MetadataPathFinder.find_distributions
importlib.metadata.MetadataPathFinder.find_distributions = classmethod(
    lambda cls, *args: (d for d in found(*args) if d.name not in ("unamp", *HIDDEN))
)
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(HIDING)
    path = os.pathsep.join(
        [str(tmp_path), *(str(ROOT / folder) for folder in (".", "adapters", "conformance"))]
    )

    def started(*arguments, code=0):
        command = [sys.executable, *arguments]
        environment = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    return started


def test_what_is_hidden_is_hidden(run):
    run("-c", "import ml_dtypes", code=1)
    said = run(
        "-c",
        "from importlib import metadata as m; print(*m.entry_points(group='unamp.adapters'), '.')",
    )
    assert said.strip() == "."


def test_the_suite_runs(run):
    options = ["--device", "cpu", "--op", "matmul", "--op", "softmax", "--json", "-j", "1"]
    # one run for the one framework that is not hidden
    (found,) = json.loads(run("-m", "unamp_conformance", *options))["runs"]
    assert found["ended"] == "finished"
    assert found["checks"]["passed"] > 15
    assert found["unexpected"] == []


def test_commands_and_adapters_are_those_that_the_checkout_declares(run):
    assert "conformance" in run("-m", "unamp", "--help")
    code = "from unamp.adapter.registry import installed; print(*sorted(installed()))"
    assert run("-c", code).split() == ["jax", "mindspore", "paddle", "tensorflow", "torch"]


def test_the_plugin_is_there_by_its_name(run):
    assert "--unamp-framework=NAME" in run(
        "-m", "pytest", "-p", "unamp_conformance.pytest_plugin", "--help"
    )
