"""The time of a training step's forward and backward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

import paddle

import unamp
from benchmarks.measure import Comparison, Contender

__all__ = ["comparisons"]

#: Width, heads, sequences and their length, with the goals. The first is the width of "Attention Is
#: All You Need" with a small batch. In a layer as narrow as the last, Python and Paddle's own calls
#: take more time than the products.
_SIZES = {
    (512, 8, 16, 128): {"bfloat16": 1.3, "float16": 1.5},
    (512, 8, 4, 128): {"bfloat16": 1.3, "float16": 1.5},
    (128, 4, 4, 32): {"bfloat16": 1.6, "float16": 2.0},
}


def comparisons() -> list[Comparison]:
    return [_comparison(*size, goals) for size, goals in _SIZES.items()]


def _comparison(
    width: int, heads: int, sequences: int, length: int, goals: Mapping[str, float]
) -> Comparison:
    step = _step(width, heads, sequences, length)
    contenders = [
        Contender("paddle, float32", "step(nothing)", {"step": step, "nothing": nullcontext()})
    ]
    for dtype, goal in goals.items():
        names = {"step": step, "region": unamp.autocast(dtype=dtype)}
        contenders.append(Contender(f"unamp, emulated {dtype}", "step(region)", names, goal=goal))
    title = (
        f"paddle: encoder layer of width {width}, {sequences} x {length} tokens, "
        "forward and backward"
    )
    return Comparison(title, tuple(contenders))


def _step(
    width: int, heads: int, sequences: int, length: int
) -> Callable[[AbstractContextManager[object]], None]:
    layer = paddle.nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0)
    x = paddle.rand([sequences, length, width])

    def step(region: AbstractContextManager[object]) -> None:
        with region:
            loss = layer(x).astype("float32").mean()
        loss.backward()
        layer.clear_gradients()

    return step
