"""The cost of opening and closing a region."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

import unamp
from benchmarks.measure import Comparison, Contender

__all__ = ["comparisons"]

Region = Callable[[], AbstractContextManager[Any]]


def _outer_torch() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def comparisons() -> list[Comparison]:
    names = {"torch": torch, "unamp": unamp, "bf16": torch.bfloat16}
    # Where the lists differ from torch's own, as here, unamp intercepts operations.
    fresh = {
        "unamp, preset native": "unamp.autocast('cpu', dtype='bfloat16', preset='native')",
        "unamp": "unamp.autocast('cpu', dtype='bfloat16')",
        "unamp, custom lists": "unamp.autocast('cpu', dtype='bfloat16', allow=('add',), deny=('linear',))",
    }
    found = []
    for where, torch_outer, unamp_outer in (
        ("outermost", nullcontext, nullcontext),
        ("nested", _outer_torch, lambda: unamp.autocast("cpu", dtype="bfloat16")),
    ):
        for how in ("fresh", "reused"):
            found.append(
                Comparison(
                    f"region enter and exit, {how}, {where}",
                    (
                        _contender("torch.autocast", how, "torch.autocast('cpu', dtype=bf16)", names, torch_outer, None),
                        *(_contender(name, how, source, names, unamp_outer, 1.0) for name, source in fresh.items()),
                    ),
                )
            )
    return found


def _contender(name: str, how: str, source: str, names: dict[str, Any], outer: Region, goal: float | None) -> Contender:
    if how == "fresh":
        return Contender(name, f"with {source}: pass", names, outer, goal)
    return Contender(name, "with region: pass", {"region": eval(source, dict(names))}, outer, goal)
