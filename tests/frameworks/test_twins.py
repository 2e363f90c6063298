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

#: The framework of each twin, as `unamp replay` calls it.
REPLAYING = {
    "torch": "torch",
    "paddle": "paddle",
    "flax": "jax",
    "mindspore": "mindspore",
    "keras": "tensorflow",
}


def read(file: Path) -> Trace:
    return Trace.from_json(file.read_text("utf-8"))


def gelu(trace: Trace) -> int:
    """Return the number of the record of GELU."""
    return next(number for number, each in enumerate(trace.records, 1) if each.op == "gelu")


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the trace of a run of PyTorch with the wrong kernel; its calls are kept."""
    run = tmp_path_factory.mktemp("wrong") / "run"
    file = run / "trace.json"
    spoilt = f"import record\nrecord.main('torch', 'transformer', {str(file)!r}, '', {str(run)!r})"
    python("-c", WRONG + spoilt, path=TWINS)
    return file


class Ran(NamedTuple):
    """The outcome of a framework's process.

    Attributes:
        files: the traces of its twins, by network.
        replayed: the outcomes of `unamp replay` of the wrong operation, and of the one before it.
    """

    files: dict[str, Path]
    replayed: list[Ended]


@pytest.fixture(scope="module")
def ran(wrong: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Ran]:
    """Return a function that returns the outcome of a framework's process, which runs once."""
    number = gelu(read(wrong))

    @cache
    def run(framework: str) -> Ran:
        folder = tmp_path_factory.mktemp(framework)
        files = {network: folder / f"{network}.json" for network in NETWORKS}
        replay = ("-m", "unamp", "replay", "--framework", REPLAYING[framework], "--json", wrong)
        ended = in_turn(
            *((TWINS / "record.py", framework, *pair) for pair in files.items()),
            (*replay, number),
            (*replay, number - 1),
            path=TWINS,
        )
        assert [done.code for done in ended[:2]] == [0, 0], ended
        return Ran(files, ended[2:])

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
    for twin, framework in REPLAYING.items():
        ended = ran(twin).replayed
        # the operation before it is right
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
