"""The time of one operation inside a region, and after the last one."""

from __future__ import annotations

from functools import partial

import paddle

import unamp
from benchmarks.measure import Comparison, Contender
from benchmarks.processes import Elsewhere

__all__ = ["aftermath", "comparisons"]

_STATEMENTS = {
    "x + y": 2.5,
    "paddle.add(x, y)": 2.5,
    "paddle.nn.functional.relu(x)": 2.5,
    "paddle.matmul(x, y)": None,
}


def _names() -> dict[str, object]:
    return {"paddle": paddle, "x": paddle.ones([4, 4]), "y": paddle.ones([4, 4])}


def comparisons() -> list[Comparison]:
    return [
        Comparison(
            f"paddle: {statement}",
            (
                Contender("paddle, float32", statement, _names()),
                Contender(
                    "unamp, in a region",
                    statement,
                    _names(),
                    lambda: unamp.autocast(dtype="bfloat16"),
                    goal,
                ),
            ),
        )
        for statement, goal in _STATEMENTS.items()
    ]


def aftermath() -> list[Comparison]:
    return [
        Comparison(
            f"paddle: {statement}, after the last region",
            (
                Elsewhere(
                    "in a process without a region", _nothing, partial(_contender, statement)
                ),
                Elsewhere("after a region", _region, partial(_contender, statement), goal=1.02),
            ),
        )
        for statement in _STATEMENTS
    ]


def _nothing() -> None:
    pass


def _region() -> None:
    with unamp.autocast(dtype="bfloat16"):
        paddle.nn.functional.relu(paddle.ones([4, 4]) @ paddle.ones([4, 4]))


def _contender(statement: str) -> Contender:
    paddle.disable_signal_handler()  # it would report the normal end of the process as a crash
    return Contender("", statement, _names())
