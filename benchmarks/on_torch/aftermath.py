"""The cost that regions leave behind in a process: none.

unamp's kernels stay registered. So the same operation is timed in processes without any O2 region,
and in processes that had one: an O2 region registers a kernel for nearly every operation.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import torch

import unamp
from benchmarks.measure import Comparison, Contender
from benchmarks.processes import Elsewhere

__all__ = ["comparisons"]

_LISTS = {"allow": ("gelu",), "deny": ("softmax",)}

_REGIONS = {
    "outside regions": nullcontext,
    "in plain torch.autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "in unamp": lambda: unamp.autocast("cpu", dtype="bfloat16"),
    "in unamp, custom lists": lambda: unamp.autocast(
        "cpu", dtype="bfloat16", preset="torch-cpu", **_LISTS
    ),
}


def _nothing() -> None:
    pass


def _o2_region() -> None:
    with unamp.autocast("cpu", dtype="bfloat16", level="O2"):
        torch.softmax(torch.ones(4, 4), -1)


def _contender(where: str, source: str) -> Contender:
    return Contender(
        "",
        source,
        {"torch": torch, "a": torch.randn(4, 4), "b": torch.randn(4, 4)},
        _REGIONS[where],
    )


def comparisons() -> list[Comparison]:
    return [
        Comparison(
            f"{source.split('(')[0].removeprefix('torch.')} {where}",
            (
                Elsewhere(
                    "in a process without an O2 region",
                    _nothing,
                    partial(_contender, where, source),
                ),
                Elsewhere(
                    "after an O2 region", _o2_region, partial(_contender, where, source), goal=1.02
                ),
            ),
        )
        for where in _REGIONS
        for source in ("torch.mul(a, b)", "torch.mm(a, b)")
    ]
