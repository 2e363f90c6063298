"""Shared functions of the tests that keep calls and run them again.

One folder of each framework uses them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from installed import without_wheels

import unamp
from unamp.tracing import Replay, replay

#: The operations of the network that JAX's, MindSpore's and TensorFlow's tests write.
OPS = frozenset(
    "add batch_norm conv2d div embedding gelu layer_norm linear matmul max_pool2d mean mul pow "
    "relu softmax sub sum tanh".split()
)


def kept(run: Callable[[], object], folder: Path, low: str = "") -> unamp.Trace:
    """Return the trace of a function, with its calls kept.

    With a low dtype, the function runs in a region.
    """
    with (
        unamp.trace(keep=folder) as trace,
        unamp.autocast(dtype=low or "bfloat16", enabled=bool(low)),
    ):
        run()
    (folder / "trace.json").write_text(trace.to_json(), "utf-8")
    return trace


def left_out(trace: unamp.Trace) -> dict[str, str]:
    """Return the operations whose calls were not kept, with the reasons."""
    return {
        each.op: each.call.left_out
        for each in trace.records
        if each.call is not None and each.call.left_out
    }


def check_every_call(trace: unamp.Trace, folder: Path, ops: Iterable[str], low: str = "") -> None:
    """Check that every call of a trace was kept, and has the same result again.

    All calls are of the given operations.
    """
    assert left_out(trace) == {}
    assert {record.op for record in trace.records} == set(ops)
    numbers = {
        (record.op, str(record.call and record.call.kwargs)): n
        for n, record in enumerate(trace.records, 1)
    }
    found = [(op, replay(trace, n, folder)) for (op, _), n in numbers.items()]
    for op, again in found:
        assert again.within, (op, again.table())
        rows = {row.dtype: row for row in again.rows}
        assert not rows["float32"].failed, (op, again.table())
        assert rows["float32"].error is not None
        assert rows["float32"].error < 2e-6, (op, again.table())
    product = next(again for op, again in found if op in ("linear", "matmul"))
    assert (_error(product) > 1e-4) is bool(low)


def _error(again: Replay) -> float:
    assert again.original.error is not None
    return again.original.error


def check_elsewhere(
    trace: unamp.Trace, folder: Path, frameworks: Iterable[str], ops: Iterable[str]
) -> None:
    """Check that operations of a trace have the same results in other frameworks.

    Each framework runs in a process of its own.
    """
    numbers = {record.op: n for n, record in enumerate(trace.records, 1)}
    wanted = [numbers[op] for op in ops]
    for framework in (each for each in frameworks if each not in without_wheels()):
        code = f"from replayed import main\nmain({str(folder)!r}, {framework!r}, {wanted})"
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        # KERAS_BACKEND is the folder's, and would select a wrong backend there
        environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
        environment["PYTHONPATH"] = path
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        for line in done.stdout.splitlines()[-len(wanted) :]:
            found: dict[str, Any] = json.loads(line)
            assert found["within"], found
            assert (found["framework"], found["rows"][1]["dtype"]) == (framework, "float32")
            assert found["rows"][1]["error"] < 2e-6, found
            # MindSpore has no float64 kernels of these on a CPU: float32 is the exact result.
            lacks = framework == "mindspore" and found["op"] in ("batch_norm", "conv2d")
            assert (found["exact"], bool(found["rows"][0]["failed"])) == (
                ("float32", True) if lacks else ("float64", False)
            )


def check_run(
    run: Callable[[], object], folder: Path, low: str, framework: str, ops: Iterable[str]
) -> None:
    """Check every call of a run of that network; in float32, check some in another framework."""
    trace = kept(run, folder, low)
    check_every_call(trace, folder, OPS, low)
    if not low:
        check_elsewhere(trace, folder, [framework], ops)


def main(folder: str, framework: str, numbers: list[int]) -> None:
    """Run operations again in a framework, and print each result on a line."""
    __import__(framework)
    trace = unamp.Trace.from_json((Path(folder) / "trace.json").read_text("utf-8"))
    for number in numbers:
        print(json.dumps(replay(trace, number, folder, framework=framework).to_data()))
