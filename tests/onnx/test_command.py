"""The command `unamp onnx` checks a file and prints what does not follow the policy."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanded import invoke
from elsewhere import ended
from onnx import ModelProto
from onnx_graphs import F16, cast, model, node, saved, weight

from unamp import LayerRule, LayerRules, Policy, Precision

HEAD = [("head", "torch.nn.modules.linear.Linear"), ("linear", "aten.linear.default")]


def made(dtype: type = np.float16) -> ModelProto:
    nodes = [
        cast("x", "l", F16),
        node("MatMul", "l w" if dtype is np.float16 else "x w", "y", HEAD),
    ]
    return model(nodes, "y", [weight("w", dtype)])


def unboxed(text: str) -> str:
    """Return an error of the command line in one line, without the box around it."""
    return " ".join(re.sub("[─│╭╮╰╯]", " ", text).split())


@pytest.fixture
def run(tmp_path: Path) -> Any:
    def call(
        made: ModelProto, *arguments: str, rules: LayerRules | None = None, code: int = 0
    ) -> str:
        file = tmp_path / "precision.toml"
        file.write_text(Precision(Policy("O1", "float16"), rules).to_toml())
        done = invoke("onnx", saved(made, tmp_path), "--policy", file, *arguments)
        assert done.exit_code == code, done.output
        return done.output

    return call


def test_a_file_that_follows_its_policy(run: Any) -> None:
    lines = run(made()).splitlines()
    assert lines[0] == "1 nodes compute with floating numbers: 1 follow it"
    assert lines[3].split() == ["linear", "float16", "float16", "1", "follows"]
    assert len(lines) == 4


def test_a_node_that_differs_is_named(run: Any) -> None:
    lines = run(made(np.float32), code=1).splitlines()
    assert lines[0] == "1 nodes compute with floating numbers: 1 differ from the policy"
    assert lines[5].split() == "y_node MatMul linear head float32 float16 differs".split()
    assert lines[6:] == [
        "casts that can go: 1",
        "cast    why                     ",
        "l_node  nothing takes its result",
    ]


def test_every_node_on_demand(run: Any) -> None:
    assert run(made(), "--nodes").splitlines()[2].split()[:4] == "y_node MatMul linear head".split()


def test_a_rule_that_matches_nothing(run: Any) -> None:
    rules = LayerRules([LayerRule("haed", "float32")])
    assert "rule 'haed' matches no layer of the file" in run(made(), rules=rules, code=1)


def test_json_has_all_of_it(run: Any) -> None:
    found = json.loads(run(made(np.float32), "--json", code=1))
    assert found == {
        "follows": False,
        "nodes": [
            {
                "name": "y_node",
                "type": "MatMul",
                "operations": ["linear"],
                "layer": "head",
                "dtype": "float32",
                "expected": "float16",
                "verdict": "differs",
                "why": "",
            }
        ],
        "casts": [{"name": "l_node", "why": "nothing takes its result"}],
        "weights": [],
        "unmatched": [],
    }


def test_names_that_a_terminal_would_obey_are_written_out(run: Any) -> None:
    nodes = [cast("x", "l", F16), node("MatMul", "x w", "y", name="\x1b[31mred\nline")]
    text = run(model(nodes, "y", [weight("w", np.float32)]), code=1)
    assert "\\x1b[31mred\\nline" in text
    assert "\x1b" not in text


def test_files_that_are_not_there(run: Any, tmp_path: Path) -> None:
    done = invoke("onnx", tmp_path / "none.onnx", "--policy", tmp_path / "none.toml")
    assert (done.exit_code, "No such file or directory" in unboxed(done.output)) == (2, True)
    run(made())
    arguments = ["onnx", "none.onnx", "--policy", str(tmp_path / "precision.toml")]
    done = invoke(*arguments)
    assert (done.exit_code, "none.onnx: No such file or directory" in unboxed(done.output)) == (
        2,
        True,
    )


def test_without_the_package_it_says_what_to_install(run: Any, tmp_path: Path) -> None:
    run(made())
    code = "import sys; sys.modules['onnx'] = None; import unamp.cli; unamp.cli.main()"
    arguments = ["onnx", str(tmp_path / "model.onnx"), "--policy", str(tmp_path / "precision.toml")]
    done = ended("-c", code, *arguments)
    assert done.code == 2
    assert "pip install 'unamp[onnx]'" in unboxed(done.stderr)
    assert "Traceback" not in done.stderr
