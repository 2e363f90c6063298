"""`unamp tune` on the command line searches, reports and writes its files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import unamp
from unamp.cli.commands import app

pytestmark = pytest.mark.beside_kernels

SCRIPT = '''
import torch
from torch import nn

torch.manual_seed(0)
network = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8)).eval()
with torch.no_grad():
    network[1].weight.mul_(1e6)
batches = [torch.randn(4, 8) for _ in range(3)]


def what():
    return {"run": network, "network": network, "batches": batches}


def lacking():
    return {"run": network, "network": network}


def further():
    return {**what(), "toleranz": 1}


def nothing():
    return None


def broken():
    def run(x):
        raise ValueError("of the user's own")
    return {**what(), "run": run}


def beyond():
    """The batch that is held out is one that the exceptions are not enough for."""
    return {**what(), "batches": batches[:2], "held_out": batches[0] * 1e6}
'''


def invoke(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["tune", *arguments], env={"COLUMNS": "400"})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "to_tune.py"
    file.write_text(SCRIPT)
    return file


@pytest.mark.filterwarnings("ignore::unamp.AmpWarning")
def test_it_writes_the_file_and_the_page(script: Path) -> None:
    code, said = invoke(
        *"to_tune:what --toml precision.toml --html report.html --resume search.json".split(),
    )
    assert code == 0
    assert said.startswith("layer  operation")
    read = unamp.Precision.read("precision.toml")
    assert [rule.pattern for rule in read.layers] == ["1"]
    assert read.policy.deny == ("layer_norm",)
    assert "unamp tune to_tune:what" in Path("report.html").read_text()
    code, said = invoke(
        "to_tune.py:what", "--json", "--resume", "search.json", "--effort", "ranked"
    )
    assert code == 0
    assert json.loads(said)["layers"] == read.layers.to_data()


@pytest.mark.filterwarnings("ignore::unamp.AmpWarning")
def test_options_go_before_what_the_function_returns(script: Path) -> None:
    code, said = invoke(
        *(
            "to_tune:what --dtype bf16 --tolerance 0.2 --margin 1 --by operation --budget 100 "
            "--level O2 --preset paddle --json"
        ).split(),
    )
    assert code == 0
    report = json.loads(said)["report"]
    assert (report["tolerance"], report["limit"], report["by"]) == (0.2, 0.2, "operation")
    assert (report["base"]["level"], report["base"]["dtype"], report["base"]["preset"]) == (
        "O2",
        "bfloat16",
        "paddle",
    )


@pytest.mark.filterwarnings("ignore::unamp.AmpWarning")
def test_a_batch_that_was_held_out_and_is_beyond_is_status_1(script: Path) -> None:
    code, said = invoke("to_tune:beyond")
    assert code == 1
    assert "inf on a batch that was held out" in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["to_tune"], "'to_tune' is none; name a function as module:function or file.py:function"),
        (["to_tune:none"], "to_tune has no function 'none'"),
        (["to_tun:what"], "there is no module 'to_tun' here"),
        (["gone.py:what"], "gone.py: there is no such file"),
        (
            ["to_tune:lacking"],
            (
                "to_tune:lacking must return a dict with run, network, batches, "
                "and what else unamp.tune takes"
            ),
        ),
        (["to_tune:further"], "unknown: 'toleranz'"),
        (
            ["to_tune:nothing"],
            "to_tune:nothing must return a dict with run, network, batches, not None",
        ),
        (["to_tune:what", "--tolerance", "-1"], "tolerance must be above 0, not -1.0"),
        (["to_tune:what", "--level", "O9"], "unknown level 'O9'"),
        (["to_tune:what", "--budget", "soon"], "budget 'soon' is none"),
        (
            ["to_tune:what", "--dtype", "float8_e4m3", "--toml", "precision.toml"],
            "a study in float8 takes no --level and no",
        ),
        (
            ["to_tune:what", "--dtype", "float8_e4m3", "--effort", "ranked"],
            "effort goes with a low dtype; a study in float8",
        ),
        (
            ["to_tune:what", "--toml", "gone/precision.toml"],
            "gone/precision.toml: No such file or directory",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::unamp.AmpWarning")
def test_what_is_wrong_is_said(arguments: list[str], says: str, script: Path) -> None:
    code, said = invoke(*arguments)
    assert code == 2
    assert says in said


def test_a_dtype_of_float8_is_a_study(script: Path) -> None:
    code, said = invoke("to_tune:what", "--dtype", "float8_e4m3", "--tolerance", "0.1")
    assert code == 0
    assert said.startswith("layer  products")
    assert "kernels take multiples of 16" in said
    code, said = invoke("to_tune:what", "--dtype", "float8_e4m3", "--tolerance", "0.1", "--json")
    assert code == 0
    assert [layer["layer"] for layer in json.loads(said)["layers"]] == ["0", "1"]


def test_an_error_of_the_users_own_code_keeps_its_traceback(script: Path) -> None:
    done = CliRunner().invoke(app, ["tune", "to_tune:broken"])
    assert isinstance(done.exception, ValueError)
    assert str(done.exception) == "of the user's own"
