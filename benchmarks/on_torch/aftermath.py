"""What regions leave behind in a process: nothing that costs anything.

unamp's kernels stay registered for good. So the same operation is timed in processes that never had a region, and in
processes that had them all.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import torch

import unamp
from benchmarks.measure import Comparison, Contender
from benchmarks.processes import Elsewhere

__all__ = ["comparisons"]

_REGIONS = {
    "outside regions": nullcontext,
    "in plain torch.autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "in unamp": lambda: unamp.autocast("cpu", dtype="bfloat16"),
    "in unamp, custom lists": lambda: unamp.autocast("cpu", dtype="bfloat16", preset="torch-cpu", allow=("gelu",), deny=("softmax",)),
}


def _contender(where: str, source: str, o2: bool) -> Contender:
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    with _REGIONS[where]():
        torch.softmax(a @ b, -1)
    if o2:
        with unamp.autocast("cpu", dtype="bfloat16", level="O2"):
            torch.softmax(a @ b, -1)
    return Contender("", source, {"torch": torch, "a": a, "b": b}, _REGIONS[where])


def comparisons() -> list[Comparison]:
    return [
        Comparison(
            f"{source.split('(')[0].removeprefix('torch.')} {where}",
            (
                Elsewhere("in a process without an O2 region", partial(_contender, where, source, False)),
                Elsewhere("after an O2 region", partial(_contender, where, source, True), 1.02),
            ),
        )
        for where in _REGIONS
        for source in ("torch.mul(a, b)", "torch.mm(a, b)")
    ]
