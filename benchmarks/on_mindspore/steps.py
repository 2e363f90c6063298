"""The time of a training step's forward and backward pass."""

from __future__ import annotations

from contextlib import nullcontext

import mindspore
import numpy as np
from mindspore import nn

import unamp
from benchmarks.measure import Comparison, Contender

__all__ = ["comparisons"]


def comparisons() -> list[Comparison]:
    mindspore.set_context(pynative_synchronize=True, runtime_num_threads=1, inter_op_parallel_num=1)
    network = nn.SequentialCell(
        nn.Dense(128, 512), nn.ReLU(), nn.LayerNorm((512,)), nn.Dense(512, 128)
    )
    x = mindspore.Tensor(np.random.default_rng(0).standard_normal((64, 128)).astype(np.float32))

    def step(region):  # type: ignore[no-untyped-def]
        def loss(x):  # type: ignore[no-untyped-def]
            with region:
                return network(x).astype(mindspore.float32).mean()

        return mindspore.value_and_grad(loss, None, network.trainable_params())(x)

    names = {"step": step, "nothing": nullcontext(), "region": unamp.autocast(dtype="bfloat16")}
    return [
        Comparison(
            "mindspore: two dense layers, forward and backward",
            (
                Contender("mindspore, float32", "step(nothing)", names),
                Contender("unamp, emulated bfloat16", "step(region)", names),
                Contender(
                    "its region alone, opened and closed", "with region: pass", names, goal=0.03
                ),
            ),
        )
    ]
