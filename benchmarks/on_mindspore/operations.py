"""What one operation costs inside a region, beside one in another thread, and after the last one has closed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import mindspore
import numpy as np
from mindspore import ops

import unamp
from benchmarks.measure import Comparison, Contender

__all__ = ["aftermath", "comparisons"]

_STATEMENTS = {"x + y": 1.1, "ops.add(x, y)": 1.1, "ops.relu(x)": 1.1, "ops.matmul(x, y)": None}


def _names() -> dict[str, object]:
    x = mindspore.Tensor(np.ones((4, 4), np.float32))
    return {"ops": ops, "x": x, "y": x + 1.0}


@contextmanager
def _elsewhere() -> Iterator[None]:
    """A region is open in another thread."""
    opened, done = threading.Event(), threading.Event()

    def work() -> None:
        with unamp.autocast(dtype="float16"):
            opened.set()
            done.wait()

    thread = threading.Thread(target=work)
    thread.start()
    opened.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


def comparisons() -> list[Comparison]:
    # Until a kernel is done: what is asked for is what an operation costs, and not how fast it is put into a queue.
    mindspore.set_context(pynative_synchronize=True, runtime_num_threads=1, inter_op_parallel_num=1)
    return [
        Comparison(
            f"mindspore: {statement}",
            (
                Contender("mindspore, float32", statement, _names()),
                Contender("a region in another thread", statement, _names(), _elsewhere, goal=1.05),
                Contender("unamp, in a region", statement, _names(), lambda: unamp.autocast(dtype="float16"), goal),
            ),
        )
        for statement, goal in _STATEMENTS.items()
    ]


def aftermath() -> list[Comparison]:
    from benchmarks.processes import Elsewhere

    return [
        Comparison(
            "mindspore: x + y, after the last region",
            (Elsewhere("untouched", _untouched), Elsewhere("after a region", _after, goal=1.02)),
        )
    ]


def _untouched() -> Contender:
    return Contender("untouched", "x + y", _names())


def _after() -> Contender:
    names = _names()
    with unamp.autocast(dtype="float16"):
        ops.matmul(names["x"], names["y"])
    return Contender("after a region", "x + y", names)
