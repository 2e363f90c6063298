"""The cost of an operation in a region, with a region in another thread, and after the last one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import mindspore
import numpy as np
from mindspore import ops

import unamp
from benchmarks.measure import Comparison, Contender
from benchmarks.on_mindspore.waiting import Waiting

__all__ = ["aftermath", "comparisons"]

_STATEMENTS = {"x + y": 1.1, "ops.add(x, y)": 1.1, "ops.relu(x)": 1.1, "ops.matmul(x, y)": None}


def _names() -> dict[str, object]:
    x = mindspore.Tensor(np.ones((4, 4), np.float32))
    return {"ops": ops, "x": x, "y": x + 1.0}


@contextmanager
def _elsewhere() -> Iterator[None]:
    """Keep a region open in another thread."""
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
    return [
        Comparison(
            f"mindspore: {statement}, {until}",
            (
                kind("mindspore, float32", statement, _names()),
                kind("a region in another thread", statement, _names(), _elsewhere, goal=1.05),
                kind(
                    "unamp, in a region",
                    statement,
                    _names(),
                    lambda: unamp.autocast(dtype="float16"),
                    goal,
                ),
            ),
        )
        for statement, goal in _STATEMENTS.items()
        for until, kind in (
            ("until the kernel is done", Waiting),
            ("until it is submitted", Contender),
        )
    ]


def aftermath() -> list[Comparison]:
    from benchmarks.processes import Elsewhere

    return [
        Comparison(
            "mindspore: x + y, after the last region",
            (
                Elsewhere("in a process without a region", _nothing, _addition),
                Elsewhere("after a region", _region, _addition, goal=1.02),
            ),
        )
    ]


def _nothing() -> None:
    pass


def _region() -> None:
    with unamp.autocast(dtype="float16"):
        ops.matmul(*(mindspore.Tensor(np.ones((4, 4), np.float32)) for _ in range(2)))


def _addition() -> Contender:
    return Contender("x + y", "x + y", _names())
