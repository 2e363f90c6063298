"""Peak memory of training, in PyNative mode; see `benchmarks.memory`.

MindSpore's own AMP has no bfloat16 on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mindspore
import numpy as np
from mindspore import amp, nn, ops

import unamp
from benchmarks import memory
from benchmarks.measure import Comparison
from benchmarks.memory import Meter, Size, Way

__all__ = ["comparisons", "meter", "prepare"]

_CPU = mindspore.get_context("device_target") == "CPU"
_OWN = "auto_mixed_precision"


def comparisons() -> Iterator[Comparison]:
    own = [
        Way(network, _OWN, level, dtype)
        for network in ("encoder", "wide")
        for level in ("auto", "O2")
        for dtype in (("float16",) if _CPU else ("bfloat16", "float16"))
    ]
    return memory.comparisons("MindSpore", __name__, own, alone="float16")


def meter() -> Meter:
    if _CPU:
        return memory.resident()
    runtime = mindspore.runtime
    return Meter(
        runtime.memory_allocated, runtime.reset_max_memory_allocated, runtime.max_memory_allocated
    )


class _Layer(nn.Cell):  # type: ignore[misc]
    """An encoder layer, with its attention written out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = 4
        self.norm_one, self.norm_two = nn.LayerNorm((width,)), nn.LayerNorm((width,))
        self.qkv, self.out = nn.Dense(width, 3 * width), nn.Dense(width, width)
        self.up, self.down = nn.Dense(width, 4 * width), nn.Dense(4 * width, width)

    def construct(self, x: Any) -> Any:
        batch, length, width = x.shape
        each = (batch, length, self.heads, width // self.heads)
        q, k, v = (
            part.reshape(each).transpose(0, 2, 1, 3)
            for part in ops.split(self.qkv(self.norm_one(x)), width, axis=-1)
        )
        weights = ops.softmax(
            ops.matmul(q, k.transpose(0, 1, 3, 2)) * (width // self.heads) ** -0.5, axis=-1
        )
        x = x + self.out(ops.matmul(weights, v).transpose(0, 2, 1, 3).reshape(x.shape))
        return x + self.down(ops.gelu(self.up(self.norm_two(x))))


def _random(*shape: int) -> Any:
    return mindspore.Tensor(np.random.default_rng(0).standard_normal(shape, np.float32))


def _network(way: Way, size: Size) -> tuple[Any, Any, Any]:
    mindspore.set_seed(0)
    if way.network == "encoder":
        network = nn.SequentialCell(*(_Layer(size.width) for _ in range(size.layers)))
        return (
            network,
            _random(size.sequences, size.length, size.width),
            nn.SGD(network.trainable_params(), 1e-4),
        )
    layers = [
        layer for _ in range(size.layers) for layer in (nn.Dense(size.width, size.width), nn.ReLU())
    ]
    network = nn.SequentialCell(*layers)
    return network, _random(size.sequences, size.width), nn.Adam(network.trainable_params(), 1e-4)


def prepare(way: Way, size: Size) -> Callable[[], None]:
    mindspore.set_context(pynative_synchronize=True)
    network, x, optimizer = _network(way, size)
    if way.decorated:
        unamp.decorate(network, optimizer, way.level, way.dtype, master_weight=way.masters)
    if way.by == _OWN:
        network = amp.auto_mixed_precision(network, way.level, getattr(mindspore, way.dtype))

    def loss_of(x: Any) -> Any:
        with way.region():
            y = network(x)
        return y.astype(mindspore.float32).square().mean()

    parameters = network.trainable_params()
    gradients_of = mindspore.value_and_grad(loss_of, None, parameters)

    def step() -> None:
        loss, gradients = gradients_of(x)
        optimizer(gradients)
        mindspore.runtime.synchronize()
        float(loss.asnumpy())

    return step
