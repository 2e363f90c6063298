"""A trace keeps calls of PyNative mode, and each can be run again alone."""

from __future__ import annotations

from pathlib import Path

import mindspore
import numpy as np
import pytest
import replayed
from mindspore import Tensor, mint, nn, ops
from safetensors.numpy import load_file, save_file

from unamp.adapter.kept_calls import RESULT
from unamp.tracing import replay


class Net(nn.Cell):
    """Layers, functions and operators whose arguments are kept in different ways."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.dense, self.norm = (
            nn.Embedding(5, 16),
            nn.Dense(16, 8),
            nn.LayerNorm((8,), epsilon=1e-6),
        )
        self.conv, self.batch = (
            nn.Conv2d(1, 4, 3, stride=2, pad_mode="same", has_bias=True),
            nn.BatchNorm2d(4),
        )
        self.grouped, self.gelu = (
            nn.Conv2d(4, 4, (3, 1), pad_mode="pad", padding=(1, 1, 0, 0), group=2),
            nn.GELU(),
        )
        self.relu, self.pool = nn.ReLU(), nn.MaxPool2d(2, 2)

    def construct(self, index: Tensor) -> Tensor:
        x = self.table(index)
        h = ops.gelu(self.gelu(self.norm(self.dense(x))), approximate="none")
        h = ops.softmax(mint.matmul(h, ops.tanh(h).T) * 2.0, axis=0)
        images = self.batch(self.conv(x.reshape((4, 1, 4, 4))))
        pooled = self.pool(self.relu(self.grouped(images)))
        return pooled.sum() + (2.0 ** (1.0 / (3.0 - ops.mean(h, axis=1, keep_dims=True)))).sum()


def run() -> None:
    mindspore.set_seed(0)
    Net()(Tensor(np.array([0, 3, 1, 2], np.int32)))


@pytest.mark.parametrize("low", ["", "bfloat16"])
def test_every_operation_comes_out_as_in_the_run(low: str, tmp_path: Path) -> None:
    replayed.check_run(
        run, tmp_path / "run", low, "torch", "batch_norm conv2d embedding mean".split()
    )


def test_a_kernel_that_computes_float64_in_float32_is_not_taken_for_exact(tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 63, dtype=np.float32)
    trace = replayed.kept(
        lambda: (ops.softplus(Tensor(x)), ops.relu(Tensor(x)), ops.exp(Tensor(x))), tmp_path
    )
    found = {record.op: replay(trace, n, tmp_path) for n, record in enumerate(trace.records, 1)}
    assert {op: again.exact for op, again in found.items()} == {
        "softplus": "float32",
        "relu": "float64",
        "exp": "float64",
    }
    assert "it computes in float32 there" in found["softplus"].rows[0].failed

    # as a framework with a precise softplus would have recorded it
    call = trace.records[0].call
    assert call is not None
    tensors = load_file(tmp_path / call.file)
    tensors[RESULT] = np.logaddexp(0, x.astype(np.float64)).astype(np.float32)
    save_file(tensors, tmp_path / call.file)
    again = replay(trace, 1, tmp_path)
    assert again.original.error
    assert again.within, again.table()
