"""A trace keeps calls of Paddle, and each can be run again alone."""

from __future__ import annotations

from pathlib import Path

import paddle
import pytest
import replayed
from paddle.nn import functional as F

import unamp

OPS = frozenset(
    "conv2d div gelu layer_norm leaky_relu linear matmul max_pool2d mul pow relu softmax "
    "sub tanh".split()
)


@pytest.mark.parametrize("low", ["", "bfloat16"])
def test_every_operation_comes_out_as_in_the_run(low: str, tmp_path: Path) -> None:
    paddle.seed(0)
    linear, conv, norm = (
        paddle.nn.Linear(16, 8),
        paddle.nn.Conv2D(1, 3, 3, stride=2, padding=1),
        paddle.nn.LayerNorm(8),
    )
    x = paddle.randn([4, 16])
    with (
        unamp.trace(keep=tmp_path / "run") as trace,
        unamp.autocast(dtype=low or "bfloat16", enabled=bool(low)),
    ):
        h = F.gelu(norm(linear(x)), approximate=True)
        F.softmax(h, axis=-1)
        paddle.matmul(h, h, transpose_y=True)
        paddle.matmul(x, paddle.tanh(x).t()) * 2.0
        2.0 ** (1.0 / (3.0 - F.leaky_relu(h)))
        F.max_pool2d(F.relu(conv(x.reshape([4, 1, 4, 4]))), 2)
    (tmp_path / "run" / "trace.json").write_text(trace.to_json(), "utf-8")
    replayed.check_every_call(trace, tmp_path / "run", OPS, low)
    if not low:
        replayed.check_elsewhere(
            trace, tmp_path / "run", ["mindspore"], ["conv2d", "layer_norm", "max_pool2d"]
        )
