"""A trace keeps calls of PyTorch, and each can be run again alone."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import deserialize
from safetensors.numpy import load_file, save_file
from torch.nn import functional as F
from typer.testing import CliRunner

import unamp
from unamp import Trace
from unamp.cli.commands import app
from unamp.tracing import replay


def network(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Call operations whose arguments are kept in different ways."""
    torch.manual_seed(0)
    images = x.reshape(2, 2, 4, 4)
    norm = torch.nn.BatchNorm2d(2)
    norm(F.conv2d(images, torch.randn(2, 2, 3, 3), stride=2, padding=1))
    F.max_pool2d(images, 2)
    torch.einsum("ij,kj->ik", x, x)
    torch.clamp(x, min=0.1, max=math.inf)
    F.embedding(y, x)
    F.gelu(x, approximate="tanh")
    torch.relu(torch.cat([x, x], dim=1))
    F.softmax(x, -1) @ x.T
    F.mse_loss(1 - x, x + 1, reduction="sum")
    return F.cross_entropy(x, y)


def kept(folder: Path, **options: object) -> Trace:
    torch.manual_seed(1)
    with unamp.trace(keep=folder, **options) as trace:  # type: ignore[arg-type]
        network(torch.randn(4, 16), torch.tensor([0, 3, 1, 2]))
    (folder / "trace.json").write_text(trace.to_json(), "utf-8")
    return trace


@pytest.mark.parametrize("low", ["", "bfloat16"])
def test_every_operation_comes_out_as_in_the_run(low: str, tmp_path: Path) -> None:
    if low:
        with unamp.autocast(dtype=low):
            trace = kept(tmp_path / "run")
    else:
        trace = kept(tmp_path / "run")
    again = Trace.from_json(trace.to_json())
    assert again.records == [record._replace(values=None) for record in trace.records]
    ran = {
        record.op: replay(again, n, tmp_path / "run") for n, record in enumerate(again.records, 1)
    }
    assert set(
        (
            "conv2d batch_norm max_pool2d einsum sub embedding gelu relu softmax cross_entropy"
        ).split()
    ) <= set(ran)
    for op, found in ran.items():
        assert found.within, (op, found.table())
        rows = {row.dtype: row for row in found.rows}
        assert not any(row.failed for row in found.rows), (op, found.table())
        assert rows["float32"].error is not None
        assert rows["float32"].error < 1e-6
        assert found.original.dtype == (found.record.compute or "float32")
    error = ran["matmul"].original.error
    assert error is not None
    assert (error > 1e-4) is bool(low)


def test_the_file_has_what_the_operation_was_given_before_it_changed_it(tmp_path: Path) -> None:
    norm, x = torch.nn.BatchNorm1d(2), torch.tensor([[-1.0, 2.0], [3.0, 5.0]])
    with unamp.trace(keep=tmp_path / "run") as trace:
        norm(x)
    (record,) = trace.records
    assert record.call is not None
    assert (record.op, record.call.args[:3]) == (
        "batch_norm",
        [{"tensor": 0}, {"tensor": 1}, {"tensor": 2}],
    )
    tensors = load_file(tmp_path / "run" / record.call.file)
    assert tensors["1"].tolist() == [0, 0] != norm.running_mean.tolist()  # type: ignore[union-attr]
    assert tensors["0"].tolist() == x.tolist()


def test_bfloat16_is_kept_bit_for_bit(tmp_path: Path) -> None:
    x = torch.tensor([-1.0, 2.0], dtype=torch.bfloat16)
    with unamp.trace(keep=tmp_path / "run") as trace:
        y = torch.exp(x)
    call = trace.records[0].call
    assert call is not None
    parts = dict(deserialize((tmp_path / "run" / call.file).read_bytes()))  # type: ignore[no-untyped-call]
    for name, tensor in (("0", x), ("result", y)):
        assert (parts[name]["dtype"], parts[name]["shape"]) == ("BF16", [2])
        assert bytes(parts[name]["data"]) == tensor.view(torch.int16).numpy().tobytes()
    assert 0 < replay(trace, 1, tmp_path / "run").original.error < 2**-8


def test_what_a_trace_does_not_keep_says_why(tmp_path: Path) -> None:
    x = torch.randn(8, 8)
    with unamp.trace(keep=tmp_path / "run") as trace:
        torch.exp(x)
        torch.softmax(x, -1, dtype=torch.float64)
        torch.fft.ifft(torch.complex(x, x))
    said = {record.op: record.call.left_out for record in trace.records if record.call is not None}
    assert said["exp"] == ""
    assert "cannot be written down: 'torch.float64'" in said["softmax"]
    assert said["fft_ifft"] == "a tensor in complex64 is not kept"
    with pytest.raises(
        ValueError,
        match=r"operation 2 \(softmax\) was not kept: an argument cannot be written down",
    ):
        replay(trace, 2, tmp_path / "run")


def test_the_limit_is_one_of_bytes_of_the_whole_trace(tmp_path: Path) -> None:
    x = torch.randn(8, 8)  # 256 bytes, and as many for the result
    with unamp.trace(keep=tmp_path / "run", keep_limit=1100) as trace:
        for _ in range(3):
            torch.exp(x)
    assert [bool(record.call.file) for record in trace.records] == [True, True, False]
    assert (
        trace.records[2].call.left_out
        == "the trace keeps 1100 bytes of tensors at most (keep_limit)"
    )
    files = [file.name for file in sorted((tmp_path / "run").iterdir())]
    assert files == ["000001.safetensors", "000002.safetensors"]


def test_bad_arguments_are_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for keep in (tmp_path, tmp_path / "file"):
        with pytest.raises(ValueError, match="keep: "):
            unamp.trace(keep=keep)
    with pytest.raises(TypeError, match="keep must be the path of a folder, not int"):
        unamp.trace(keep=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="keep_limit must be a number of bytes"):
        unamp.trace(keep=tmp_path / "a", keep_limit=0)
    with (
        unamp.trace(keep=tmp_path / "b"),
        pytest.raises(ValueError, match="a trace around this one keeps calls"),
        unamp.trace(keep=tmp_path / "c"),
    ):
        pass
    trace = kept(tmp_path / "run")
    for number in (0, len(trace.records) + 1, True):
        with pytest.raises(ValueError, match="there is no operation"):
            replay(trace, number, tmp_path / "run")
    with pytest.raises(ValueError, match="unknown framework 'troch'"):
        replay(trace, 1, tmp_path / "run", framework="troch")
    with unamp.trace() as without:
        torch.exp(torch.ones(1))
    with pytest.raises(ValueError, match=r"operation 1 \(exp\) kept no inputs"):
        replay(without, 1, tmp_path)


def test_a_trace_around_one_that_keeps_has_no_calls_and_the_other_way_round(tmp_path: Path) -> None:
    with unamp.trace() as outer, unamp.trace(keep=tmp_path / "a") as inner:
        torch.exp(torch.ones(1))
    assert [bool(record.call) for record in (*outer.records, *inner.records)] == [False, True]
    with unamp.trace(keep=tmp_path / "b") as outer, unamp.trace() as inner:
        torch.exp(torch.ones(1))
    assert [
        bool(record.call and record.call.file) for record in (*outer.records, *inner.records)
    ] == [True, False]


def test_a_hostile_folder_is_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    trace = kept(folder)
    number = next(n for n, record in enumerate(trace.records, 1) if record.op == "gelu")
    call = trace.records[number - 1].call
    assert call is not None
    file = folder / call.file
    sound = load_file(file)

    def said() -> str:
        done = CliRunner().invoke(app, ["replay", str(folder / "trace.json"), str(number)])
        assert isinstance(done.exception, SystemExit)
        assert done.exit_code == 2
        return " ".join(done.output.replace("│", " ").split())

    outside = tmp_path / "outside.safetensors"
    save_file(sound, outside)
    file.unlink()
    assert "No such file" in said()
    file.symlink_to(outside)
    assert "is no file of this folder" in said()
    file.unlink()
    for content in (b"", b"\x00" * 64, b"\xff" * 64, outside.read_bytes()[:-4]):
        file.write_bytes(content)
        assert "no file of safetensors" in said()
    for tensors, says in (
        ({}, "does not hold the 1 tensors"),
        ({**sound, "9": np.ones(1, np.float32)}, "does not hold the 1 tensors"),
        ({"0": sound["0"]}, "has no floating result to compare"),
        ({**sound, "result": np.ones(3, np.float32)}, "has a result of shape (3,)"),
        ({**sound, "0": np.ones(3, np.complex64)}, "has the dtype C64"),
    ):
        save_file(tensors, file)
        assert says in said()


def test_the_command_tells_a_result_that_is_wrong(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    trace = kept(folder)
    number = next(n for n, record in enumerate(trace.records, 1) if record.op == "gelu")
    arguments = ["replay", str(folder / "trace.json"), str(number)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    file = folder / trace.records[number - 1].call.file  # type: ignore[union-attr]
    tensors = load_file(file)
    save_file({**tensors, "result": tensors["result"] * np.float32(1.001)}, file)
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1
    assert (
        "gelu: the result of the run is not what the operation gives from its inputs: "
        "error 1.00e-03"
    ) in done.stdout
    done = CliRunner().invoke(app, [*arguments, "--json"])
    found = json.loads(done.stdout)
    assert (done.exit_code, found["within"], found["op"]) == (1, False, "gelu")
    assert [row["dtype"] for row in found["rows"]] == ["float64", "float32", "float16", "bfloat16"]
    save_file({**tensors, "result": np.full_like(tensors["result"], np.inf)}, file)
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert (done.exit_code, json.loads(done.stdout)["original"]["error"]) == (1, "inf")
