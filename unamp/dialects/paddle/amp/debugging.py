"""`paddle.amp.debugging`: how often each operation ran, by dtype, and where a result is not finite.

The operations that `unamp.trace` records are counted and checked, in the forward pass; a trace
tells more. Paddle's page:
https://www.paddlepaddle.org.cn/documentation/docs/en/api/paddle/amp/Overview_en.html
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import unamp
from unamp.dialects._in_use import framework_in_use
from unamp.dialects.paddle.amp._operator_stats import (
    OperatorStats,
    collect_operator_stats,
    disable_operator_stats_collection,
    enable_operator_stats_collection,
)
from unamp.dialects.paddle.amp._tensor_checker import (
    DebugMode,
    TensorCheckerConfig,
    check_layer_numerics,
    disable_tensor_checker,
    enable_tensor_checker,
)

__all__ = [
    "DebugMode",
    "OperatorStats",
    "TensorCheckerConfig",
    "check_layer_numerics",
    "check_numerics",
    "collect_operator_stats",
    "compare_accuracy",
    "disable_operator_stats_collection",
    "disable_tensor_checker",
    "enable_operator_stats_collection",
    "enable_tensor_checker",
]


def check_numerics(
    tensor: Any, op_type: str, var_name: str, debug_mode: Any = DebugMode.CHECK_NAN_INF_AND_ABORT
) -> Any:
    """Return the counts of NaN, infinities and zeros in a Paddle tensor, and its max, min and mean.

    Raises:
        TypeError: for another framework's tensor; `unamp.trace(values=True)` tells of its results.
        RuntimeError: where there are NaN or infinities and the mode says to abort.
    """
    paddle = framework_in_use("paddle")
    if paddle is None or not isinstance(tensor, paddle.Tensor):
        raise TypeError(
            f"check_numerics takes tensors of PaddlePaddle, not {type(tensor).__name__}: "
            "unamp.trace(values=True) tells of the results of operations in every framework"
        )
    own = paddle.amp.debugging
    return own.check_numerics(tensor, op_type, var_name, own.DebugMode[debug_mode.name])


def compare_accuracy(
    dump_path: str,
    another_dump_path: str,
    output_filename: str,
    loss_scale: float = 1,
    dump_all_tensors: bool = False,
) -> None:
    """Write a table that compares two runs, the largest error first; see `unamp.compare_traces`.

    Args:
        dump_path: the `output_dir` of one run, in float32, say.
        another_dump_path: the `output_dir` of the other run.
        output_filename: the file to write, as text; Paddle's writes a workbook.
        loss_scale: has no effect: the traces hold no gradients.
        dump_all_tensors: must be False, as in Paddle.

    Raises:
        AssertionError: for `dump_all_tensors`.
        FileNotFoundError: where a folder holds no trace of `enable_tensor_checker`.
    """
    assert dump_all_tensors is False, "It is currently not supported."
    reference, other = (_loaded(Path(path)) for path in (dump_path, another_dump_path))
    found = unamp.compare_traces(reference, other)
    Path(output_filename).write_text(found.table() + "\n", "utf-8")


def _loaded(folder: Path) -> unamp.Trace:
    """Return all that a run wrote into a folder, as one trace."""
    paths = sorted(folder.glob("worker_*.json"), key=lambda path: int(path.suffixes[0][1:]))
    if not paths:
        raise FileNotFoundError(
            f"{folder} holds no worker_*.json, which disable_tensor_checker() writes for "
            "TensorCheckerConfig(output_dir=...)"
        )
    traces = [unamp.Trace.from_json(path.read_text("utf-8")) for path in paths]
    traces[0].records = [record for trace in traces for record in trace.records]
    return traces[0]
