"""The cost of opening and closing a region."""

from __future__ import annotations

import mindspore
from mindspore._c_expression import amp

import unamp
from benchmarks.measure import Comparison, Contender

__all__ = ["comparisons"]

#: MindSpore's own strategy for a block of code, as its `auto_mixed_precision` at level "auto" puts
#: it on a function.
_THEIRS = "push(level, low, names, []); pop()"
_LISTED = ("MatMul", "MatMulExt", "BatchMatMul", "Dense", "Conv2D", "Conv3D")


def comparisons() -> list[Comparison]:
    region = unamp.autocast(dtype="float16")
    names = {
        "region": region, "push": amp.push_amp_strategy, "pop": amp.pop_amp_strategy,
        "level": amp.AmpLevel.AmpAuto, "low": mindspore.float16,
        "names": [(name, []) for name in _LISTED],
    }  # fmt: skip
    return [
        Comparison(
            f"mindspore: region enter and exit, {where}",
            (
                Contender("mindspore's own strategy, six names", _THEIRS, names),
                Contender("unamp", "with region: pass", names, *outer, at_most=at_most),
            ),
        )
        for where, outer, at_most in (
            ("outermost", (), None),
            ("nested", (lambda: region,), 2.5e-6),
        )
    ]
