"""Traces of the same network in several frameworks are compared, and operations run again.

Each framework has one process; they exchange files.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from commanded import invoke
from elsewhere import Ended, in_turn, python

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

#: The framework of a twin, where it has another name.
FRAMEWORK = {"flax": "jax", "keras": "tensorflow"}


def read(file: Path) -> Trace:
    return Trace.from_json(file.read_text("utf-8"))


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the trace of a run of PyTorch with the wrong kernel; its calls are kept."""
    run = tmp_path_factory.mktemp("wrong") / "run"
    file = run / "trace.json"
    spoilt = f"import record\nrecord.main('torch', 'transformer', {str(file)!r}, '', {str(run)!r})"
    python("-c", WRONG + spoilt, path=TWINS)
    return file


class Ran(NamedTuple):
    """The traces of a framework's twins, and the outcomes of replaying two operations."""

    files: dict[str, Path]
    replayed: list[Ended]


@pytest.fixture(scope="module")
def ran(wrong: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Ran]:
    """Return a function that runs a framework's process once, and returns its outcome."""
    records = read(wrong).records
    number = next(number for number, each in enumerate(records, 1) if each.op == "gelu")

    @cache
    def run(framework: str) -> Ran:
        folder = tmp_path_factory.mktemp(framework)
        files = {network: folder / f"{network}.json" for network in NETWORKS}
        name = FRAMEWORK.get(framework, framework)
        replay = ("-m", "unamp", "replay", "--framework", name, "--json", wrong)
        # first, since `unamp replay` imports the framework itself
        commands = [(*replay, number), (*replay, number - 1)]
        commands += [(TWINS / "record.py", framework, *pair) for pair in files.items()]
        ended = in_turn(*commands, path=TWINS)
        # the operation before the wrong one is right
        assert [done.code for done in ended] == [1, 0, 0, 0], ended
        return Ran(files, ended[:2])

    return run


@pytest.mark.parametrize("framework", ["paddle", "mindspore", "keras", "flax"])
def test_every_layer_of_a_twin_is_proposed_and_no_operation_differs(
    framework: str, ran: Callable[[str], Ran]
) -> None:
    others = ran(framework).files
    for network, file in ran("torch").files.items():
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
    wrong: Path, ran: Callable[[str], Ran], tmp_path: Path
) -> None:
    paddle, layers = ran("paddle").files["transformer"], tmp_path / "layers.toml"
    assert invoke("compare", paddle, wrong, "--propose-layers", layers).exit_code == 0
    compared = invoke("compare", paddle, wrong, "--layers", layers)
    assert compared.exit_code == 1
    said = compared.stdout
    assert "first gelu in Encoder: error" in said
    assert "  the reference: paddle " in said
    assert (
        "  the other: torch aten::gelu in Encoder, computed in float32, "
        "rule untouched: no region was open"
    ) in said
    for framework in ("torch", "paddle", "flax", "mindspore", "keras"):
        found, before = (json.loads(done.stdout) for done in ran(framework).replayed)
        name = FRAMEWORK.get(framework, framework)
        assert (found["op"], found["within"], found["framework"]) == ("gelu", False, name)
        rows = {row["dtype"]: row for row in found["rows"]}
        assert list(rows) == ["float64", "float32", "float16", "bfloat16"]
        assert rows["float32"]["error"] < 1e-6 < 1e-5 < found["original"]["error"]
        assert (
            rows["float32"]["error"] < rows["float16"]["error"] < rows["bfloat16"]["error"] < 0.02
        )
        assert all(row["finite"] == 1.0 for row in found["rows"])
        assert before["op"] == "linear"
