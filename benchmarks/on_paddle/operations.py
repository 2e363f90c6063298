"""What one operation costs inside a region, and after the last one has closed."""

from __future__ import annotations

import paddle

import unamp
from benchmarks.measure import Comparison, Contender

__all__ = ["aftermath", "comparisons"]

_STATEMENTS = {"x + y": 2.5, "paddle.add(x, y)": 2.5, "paddle.nn.functional.relu(x)": 2.5, "paddle.matmul(x, y)": None}


def _names() -> dict[str, object]:
    return {"paddle": paddle, "x": paddle.ones([4, 4]), "y": paddle.ones([4, 4])}


def comparisons() -> list[Comparison]:
    return [
        Comparison(
            f"paddle: {statement}",
            (
                Contender("paddle, float32", statement, _names()),
                Contender("unamp, in a region", statement, _names(), lambda: unamp.autocast(dtype="bfloat16"), goal),
            ),
        )
        for statement, goal in _STATEMENTS.items()
    ]


def aftermath() -> list[Comparison]:
    from benchmarks.processes import Elsewhere

    return [
        Comparison(
            "paddle: x + y, after the last region",
            (Elsewhere("untouched", _untouched), Elsewhere("after a region", _after, goal=1.02)),
        )
    ]


def _untouched() -> Contender:
    return Contender("untouched", "x + y", _names())


def _after() -> Contender:
    with unamp.autocast(dtype="bfloat16"):
        paddle.ones([4, 4]) @ paddle.ones([4, 4])
    return Contender("after a region", "x + y", _names())
