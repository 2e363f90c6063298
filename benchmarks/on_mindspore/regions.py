"""The cost of opening and closing a region."""

from __future__ import annotations

import mindspore
from mindspore._c_expression import amp
from unamp_mindspore import patches
from unamp_mindspore.compiled import exchange

import unamp
from benchmarks.measure import Comparison, Contender
from unamp.adapter.replacing import PatchGroup

__all__ = ["comparisons"]

#: MindSpore's own strategy for a stretch of code, as its `auto_mixed_precision` of level "auto" puts it on a function.
_THEIRS = "push(level, low, names, []); pop()"
_LISTED = ("MatMul", "MatMulExt", "BatchMatMul", "Dense", "Conv2D", "Conv3D")


def comparisons() -> list[Comparison]:
    region = unamp.autocast(dtype="float16")
    names = {
        "region": region, "push": amp.push_amp_strategy, "pop": amp.pop_amp_strategy, "level": amp.AmpLevel.AmpAuto,
        "low": mindspore.float16, "names": [(name, []) for name in _LISTED],
    }  # fmt: skip
    return [
        *(
            Comparison(
                f"mindspore: region enter and exit, {where}",
                (
                    Contender("mindspore's own strategy, six names", _THEIRS, names),
                    Contender("unamp", "with region: pass", names, *outer, at_most=at_most),
                ),
            )
            for where, outer, at_most in (("outermost", (), 22e-6), ("nested", (lambda: region,), 2.5e-6))
        ),
        *_exchanges(),
    ]


def _exchanges() -> list[Comparison]:
    """All that a region exchanges, and back, by the loops in Python and in C; nothing where those in C are not built."""
    if exchange is None:
        return []
    (group,) = patches._everything()
    ways = {"in Python": PatchGroup(group.patches), "in C": PatchGroup(group.patches, exchange)}
    goals = {"in Python": None, "in C": 0.35}
    return [
        Comparison(
            "mindspore: what a region exchanges, there and back",
            tuple(
                Contender(name, "group.apply(); group.undo()", {"group": group}, goal=goals[name])
                for name, group in ways.items()
            ),
        )
    ]
