"""What a trace keeps of calls, and running one again alone, on PaddlePaddle."""

from __future__ import annotations

from pathlib import Path

import paddle
import pytest
from paddle.nn import functional as F

import unamp
from unamp.tracing import replay


@pytest.mark.parametrize("low", ["", "bfloat16"])
def test_every_operation_comes_out_as_in_the_run(low: str, tmp_path: Path) -> None:
    paddle.seed(0)
    linear, conv, norm = paddle.nn.Linear(16, 8), paddle.nn.Conv2D(1, 3, 3, stride=2, padding=1), paddle.nn.LayerNorm(8)
    x = paddle.randn([4, 16])
    with unamp.trace(keep=tmp_path / "run") as trace, unamp.autocast(dtype=low or "bfloat16", enabled=bool(low)):
        h = F.gelu(norm(linear(x)), approximate=True)
        F.softmax(h, axis=-1)
        paddle.matmul(h, h, transpose_y=True)
        paddle.matmul(x, paddle.tanh(x).t()) * 2.0
        F.max_pool2d(F.relu(conv(x.reshape([4, 1, 4, 4]))), 2)
    left_out = {}
    ran = {}
    for n, record in enumerate(trace.records, 1):
        assert record.call is not None
        if record.call.left_out:
            left_out[record.op] = record.call.left_out
        else:
            ran[record.op] = replay(trace, n, tmp_path / "run")
    assert left_out == {"matmul": "it transposes an input, for which the canonical signature has no argument"}
    assert set(ran) == {"linear", "layer_norm", "gelu", "softmax", "matmul", "tanh", "mul", "conv2d", "relu", "max_pool2d"}
    for op, found in ran.items():
        assert found.within, (op, found.table())
        assert not any(row.failed for row in found.rows), (op, found.table())
    error = ran["linear"].original.error
    assert error is not None
    assert (error > 1e-4) is bool(low)
