"""Traces of the same network in several frameworks are compared, and operations run again.

Each framework has a process of its own; they exchange files.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from commanded import invoke
from elsewhere import in_turn, python

from unamp.tracing import LayerMapping, Trace, compare_traces, propose_layers

TWINS = Path(__file__).parents[2] / "docs" / "examples" / "twins"

#: A wrong kernel for PyTorch: it always computes GELU by the approximation with tanh.
WRONG = """
import torch
def gelu(x, *, approximate="none"):
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))
torch.library.impl("aten::gelu", "CPU")(gelu)
"""


NETWORKS = ("transformer", "lenet5")


def read(file: Path) -> Trace:
    return Trace.from_json(file.read_text("utf-8"))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Path]]:
    """Return a function that returns the files of a framework's traces of both twins.

    The twins run once, in a process of their own.
    """

    @cache
    def record(framework: str) -> dict[str, Path]:
        folder = tmp_path_factory.mktemp(framework)
        files = {network: folder / f"{network}.json" for network in NETWORKS}
        ended = in_turn(
            *((TWINS / "record.py", framework, *pair) for pair in files.items()), path=TWINS
        )
        assert [done.code for done in ended] == [0, 0], ended
        return files

    return record


@pytest.mark.parametrize("framework", ["paddle", "mindspore", "keras", "flax"])
def test_every_layer_of_a_twin_is_proposed_and_no_operation_differs(
    framework: str, recorded: Callable[[str], dict[str, Path]]
) -> None:
    others = recorded(framework)
    for network, file in recorded("torch").items():
        expected, other = read(file), read(others[network])
        proposed = propose_layers(expected, other)
        assert {layer for layer, _ in proposed.pairs} == {each.layer for each in expected.records}
        assert proposed.alone == ((), ())
        mapping = LayerMapping.from_toml(proposed.to_toml())
        assert mapping == proposed
        compared = compare_traces(expected, other, layers=mapping)
        assert (compared.only_in_reference, compared.only_in_other) == ([], [])
        assert len(compared.operations) == len(expected.records) > 10
        assert compared.within, compared.table()
        # In these two networks every operation ran in the same order; the mapping must find that
        # order.
        assert sorted(other.records.index(c.other) for c in compared.operations) == list(
            range(len(other.records))
        )
        assert all(
            expected.records.index(c.reference) == other.records.index(c.other)
            for c in compared.operations
        )


def test_a_wrong_operation_is_found_by_comparing_and_confirmed_by_running_it_again(
    recorded: Callable[[str], dict[str, Path]], tmp_path: Path
) -> None:
    paddle, run, layers = (
        recorded("paddle")["transformer"],
        tmp_path / "run",
        tmp_path / "layers.toml",
    )
    spoilt = (
        "import record\n"
        f"record.main('torch', 'transformer', {str(run / 'trace.json')!r}, '', {str(run)!r})"
    )
    python("-c", WRONG + spoilt, path=TWINS)
    wrong = read(run / "trace.json")
    assert invoke("compare", paddle, run / "trace.json", "--propose-layers", layers).exit_code == 0
    compared = invoke("compare", paddle, run / "trace.json", "--layers", layers)
    assert compared.exit_code == 1
    said = compared.stdout
    assert "first gelu in Encoder: error" in said
    assert "  the reference: paddle " in said
    assert (
        "  the other: torch aten::gelu in Encoder, computed in float32, "
        "rule untouched: no region was open"
    ) in said
    number = next(n for n, each in enumerate(wrong.records, 1) if each.op == "gelu")
    for framework in ("torch", "paddle", "jax", "mindspore", "tensorflow"):
        # The operation before it is right.
        commands = [
            ("replay", run / "trace.json", n, "--framework", framework, "--json")
            for n in (number, number - 1)
        ]
        ended = in_turn(*(("-m", "unamp", *words) for words in commands))
        assert [done.code for done in ended] == [1, 0], ended
        found, before = (json.loads(done.stdout) for done in ended)
        assert (found["op"], found["within"], found["framework"]) == ("gelu", False, framework)
        rows = {row["dtype"]: row for row in found["rows"]}
        assert list(rows) == ["float64", "float32", "float16", "bfloat16"]
        assert rows["float32"]["error"] < 1e-6 < 1e-5 < found["original"]["error"]
        assert (
            rows["float32"]["error"] < rows["float16"]["error"] < rows["bfloat16"]["error"] < 0.02
        )
        assert all(row["finite"] == 1.0 for row in found["rows"])
        assert before["op"] == "linear"
