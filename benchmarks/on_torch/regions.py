"""The time to open and close a region, with the kernels as they are here, and in Python."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

import unamp
from benchmarks.measure import Comparison, Contender

__all__ = ["comparisons", "in_python"]

Region = Callable[[], AbstractContextManager[Any]]


def _outer_torch() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.bfloat16)


#: The highest acceptable ratios: for an outermost region that is new, for one that is used again,
#: and for a nested one.
COMPILED, PYTHON = (1.0, 1.0, 1.0), (2.3, 3.0, 3.0)


def in_python() -> list[Comparison]:
    """Return the same comparisons, for a process with kernels in Python."""
    return comparisons(PYTHON)


def comparisons(goals: tuple[float, float, float] = COMPILED) -> list[Comparison]:
    names = {"torch": torch, "unamp": unamp, "bf16": torch.bfloat16}
    # these lists differ from torch's own, so that unamp intercepts operations
    fresh = {
        "unamp, preset native": "unamp.autocast('cpu', dtype='bfloat16', preset='native')",
        "unamp": "unamp.autocast('cpu', dtype='bfloat16')",
        "unamp, custom lists": (
            "unamp.autocast('cpu', dtype='bfloat16', allow=('add',), deny=('linear',))"
        ),
    }
    found = []
    for where, torch_outer, unamp_outer in (
        ("outermost", nullcontext, nullcontext),
        ("nested", _outer_torch, lambda: unamp.autocast("cpu", dtype="bfloat16")),
    ):
        for how, goal in zip(("fresh", "reused"), goals[:2], strict=True):
            if where == "nested":
                goal = goals[2]
            found.append(
                Comparison(
                    f"region enter and exit, {how}, {where}",
                    (
                        _contender(
                            "torch.autocast",
                            how,
                            "torch.autocast('cpu', dtype=bf16)",
                            names,
                            torch_outer,
                            None,
                        ),
                        *(
                            _contender(name, how, source, names, unamp_outer, goal)
                            for name, source in fresh.items()
                        ),
                    ),
                )
            )
    return found


def _contender(
    name: str, how: str, source: str, names: dict[str, Any], outer: Region, goal: float | None
) -> Contender:
    if how == "fresh":
        return Contender(name, f"with {source}: pass", names, outer, goal)
    return Contender(name, "with region: pass", {"region": eval(source, dict(names))}, outer, goal)
