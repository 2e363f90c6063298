"""A training step's forward and backward."""

from __future__ import annotations

from contextlib import nullcontext

import paddle

import unamp
from benchmarks.measure import Comparison, Contender

__all__ = ["comparisons"]


def comparisons() -> list[Comparison]:
    layer, x = paddle.nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0), paddle.rand([4, 32, 128])

    def step(region):  # type: ignore[no-untyped-def]
        with region:
            loss = layer(x).astype("float32").mean()
        loss.backward()
        layer.clear_gradients()

    names = {"step": step, "nothing": nullcontext(), "region": unamp.autocast(dtype="bfloat16")}
    return [
        Comparison(
            "paddle: encoder layer, forward and backward",
            (
                Contender("paddle, float32", "step(nothing)", names),
                Contender("unamp, emulated bfloat16", "step(region)", names, goal=1.3),
            ),
        )
    ]
