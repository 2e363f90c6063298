"""The dialect of `paddle.amp.debugging` counts operators and checks results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import unamp
from unamp.adapter.records import Values
from unamp.dialects.paddle.amp import debugging

FINITE = unamp.OpRecord(
    "exp",
    "exp",
    unamp.Rule.FP32,
    ("float32",),
    "float32",
    "float32",
    values=Values((2,), 0, 2.0, 1.0, 2.0, (2.0, 0.0)),
)
LARGE = FINITE._replace(values=Values((2,), 0, 65505.0, 1.0, 2.0, (2.0, 0.0)))
INFINITE = FINITE._replace(
    op="matmul", layer="Net.0", output="float16", values=Values((2, 3), 4, 1.0, 1.0, 1.0, (1.0,))
)


def test_operator_stats(fake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    record = unamp.OpRecord("matmul", "mm", unamp.Rule.LOW, ("float32",), "float16", "float16")
    with debugging.collect_operator_stats() as stats:
        fake.sinks[-1](record)
        fake.sinks[-1](record)
        fake.sinks[-1](record._replace(op="exp", compute="float32"))
    table = capsys.readouterr().out.splitlines()
    assert [line.split() for line in table[2:-2]] == [
        ["exp", "|", "0", "|", "0", "|", "1", "|", "0"],
        ["matmul", "|", "2", "|", "0", "|", "0", "|", "0"],
    ]
    assert " op count: 2 " in table[-2]
    assert stats == {
        "exp": {"float16": 0, "bfloat16": 0, "float32": 1, "other": 0},
        "matmul": {"float16": 2, "bfloat16": 0, "float32": 0, "other": 0},
    }
    # no operator ran, so nothing is printed
    assert debugging.disable_operator_stats_collection() == {}
    with pytest.raises(KeyError), debugging.collect_operator_stats():
        raise KeyError
    assert capsys.readouterr().out == ""
    assert fake.sinks == []


def test_the_tensor_checker(fake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    modes, config = debugging.DebugMode, debugging.TensorCheckerConfig

    def told(mode: Any, record: unamp.OpRecord, **arguments: Any) -> str:
        debugging.enable_tensor_checker(config(True, mode, **arguments))
        try:
            fake.sinks[-1](record)
        finally:
            debugging.disable_tensor_checker()
        return capsys.readouterr().out

    assert told(modes.CHECK_NAN_INF, INFINITE) == (
        "[PRECISION] [ERROR] in [framework=, op=matmul, layer=Net.0, dtype=float16], numel=6, "
        "nonfinite=4, max_abs=1.000000e+00, mean=1.000000e+00\n"
    )
    assert told(modes.CHECK_NAN_INF, FINITE) == told(modes.CHECK_NAN_INF, LARGE) == ""
    assert told(modes.CHECK_ALL_FOR_OVERFLOW, FINITE) == ""
    assert "[ERROR]" in told(modes.CHECK_ALL_FOR_OVERFLOW, LARGE)
    assert "[ERROR]" not in told(modes.CHECK_ALL, FINITE)
    with pytest.raises(RuntimeError, match=r"NAN or INF .*op=matmul, layer=Net.0"):
        told(modes.CHECK_NAN_INF_AND_ABORT, INFINITE)
    capsys.readouterr()
    assert told(modes.CHECK_NAN_INF, INFINITE, checked_op_list=["exp"]) == ""
    assert told(modes.CHECK_NAN_INF, INFINITE, skipped_op_list=["matmul_v2"]) == ""
    assert fake.sinks == []
    debugging.disable_tensor_checker()  # a second call does nothing


def test_steps_of_the_tensor_checker(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debugging.TensorCheckerConfig, "current_step_id", 0)
    checked = []
    config = debugging.TensorCheckerConfig(True, debug_step=[0, 2])
    for _ in range(3):
        debugging.enable_tensor_checker(config)
        checked.append(bool(fake.sinks))
        debugging.disable_tensor_checker()
    assert checked == [True, True, False]
    debugging.enable_tensor_checker(debugging.TensorCheckerConfig(False))
    assert fake.sinks == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"debug_mode": 3}, ValueError),
        ({"debug_step": 3}, ValueError),
        ({"debug_step": [3, 1]}, AssertionError),
        ({"checked_op_list": "matmul"}, ValueError),
        ({"checked_op_list": ["no_such_kernel"]}, ValueError),
    ],
)
def test_a_bad_configuration_of_the_tensor_checker(arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        debugging.TensorCheckerConfig(True, **arguments)


def test_two_runs_that_the_tensor_checker_wrote_are_compared(fake: Any, tmp_path: Path) -> None:
    for name, record in (("wide", FINITE), ("low", LARGE)):
        for _ in range(2):
            debugging.enable_tensor_checker(
                debugging.TensorCheckerConfig(
                    True, debugging.DebugMode.CHECK_NAN_INF, output_dir=str(tmp_path / name)
                )
            )
            fake.sinks[-1](record)
            debugging.disable_tensor_checker()
    debugging.compare_accuracy(
        str(tmp_path / "wide"), str(tmp_path / "low"), str(tmp_path / "found.txt")
    )
    assert (tmp_path / "found.txt").read_text("utf-8").count("exp") >= 2
    with pytest.raises(FileNotFoundError, match="disable_tensor_checker"):
        debugging.compare_accuracy(
            str(tmp_path), str(tmp_path / "low"), str(tmp_path / "found.txt")
        )
    with pytest.raises(AssertionError):
        debugging.compare_accuracy("", "", "", dump_all_tensors=True)


def test_counting_ends_in_the_region_that_it_began_in(fake: Any) -> None:
    debugging.enable_operator_stats_collection()
    with (
        unamp.autocast(dtype="float16"),
        pytest.raises(RuntimeError, match="disable it where it was enabled"),
    ):
        debugging.disable_operator_stats_collection()
    debugging.disable_operator_stats_collection()
    assert fake.sinks == []


def test_a_layer_whose_numbers_are_checked(fake: Any, tensor: Any) -> None:
    @debugging.check_layer_numerics
    def forward(self: Any, x: Any, record: unamp.OpRecord) -> Any:
        fake.sinks[-1](record)
        return x

    x = tensor("float32")
    assert forward(None, x, FINITE) is x
    with pytest.raises(RuntimeError, match="op=matmul"):
        forward(None, x, INFINITE)
    with pytest.raises(RuntimeError, match="must be tensor"):
        forward(None, 3, FINITE)
    with pytest.raises(RuntimeError, match="No elements"):
        forward(None)
    with pytest.raises(TypeError, match=r"PaddlePaddle.*unamp.trace"):
        debugging.check_numerics(x, "exp", "x")
    assert fake.sinks == []
