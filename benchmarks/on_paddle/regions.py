"""The time to open and close a region."""

from __future__ import annotations

import paddle

import unamp
from benchmarks.measure import Comparison, Contender

__all__ = ["comparisons"]


def comparisons() -> list[Comparison]:
    region = unamp.autocast(dtype="bfloat16")
    names = {"region": region, "paddle": paddle}
    # On a CPU Paddle's own region switches nothing: it shows the least cost.
    theirs = "with paddle.amp.auto_cast(enable=False): pass"
    return [
        Comparison(
            f"paddle: region enter and exit, {where}",
            (
                Contender("paddle.amp.auto_cast", theirs, names),
                Contender("unamp", "with region: pass", names, *outer, **goal),
            ),
        )
        for where, outer, goal in (
            ("outermost", (), {"goal": 1.0}),
            ("nested", (lambda: region,), {"at_most": 2e-6}),
        )
    ]
