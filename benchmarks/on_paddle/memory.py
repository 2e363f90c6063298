"""Peak memory of training; see `benchmarks.memory`.

On a CPU Paddle's own AMP does nothing: it is left out there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import paddle
import paddle.nn.functional as F
from paddle import nn

import unamp
from benchmarks import memory
from benchmarks.measure import Comparison
from benchmarks.memory import Meter, Size, Way

__all__ = ["comparisons", "meter", "prepare"]

_GPU = paddle.device.is_compiled_with_cuda() and paddle.device.cuda.device_count() > 0
_OWN = "paddle.amp"


def comparisons() -> Iterator[Comparison]:
    own = [
        Way(network, _OWN, level, dtype, decorated=level == "O2" and network == "wide")
        for network in ("encoder", "wide")
        for level in ("O1", "O2")
        for dtype in ("bfloat16", "float16")
    ]
    return memory.comparisons("Paddle", __name__, own if _GPU else ())


def meter() -> Meter:
    if not _GPU:
        return memory.resident()
    cuda = paddle.device.cuda
    return Meter(cuda.memory_allocated, cuda.reset_max_memory_allocated, cuda.max_memory_allocated)


class _Layer(nn.Layer):  # type: ignore[misc]
    """An encoder layer, with its attention written out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = 4
        self.norm_one, self.norm_two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        split = (
            self.qkv(self.norm_one(x))
            .reshape([batch, length, 3, self.heads, -1])
            .transpose([2, 0, 3, 1, 4])
        )
        q, k, v = split.unbind(0)
        weights = F.softmax(
            paddle.matmul(q, k, transpose_y=True) * (width // self.heads) ** -0.5, axis=-1
        )
        x = x + self.out(
            paddle.matmul(weights, v).transpose([0, 2, 1, 3]).reshape([batch, length, width])
        )
        return x + self.down(F.gelu(self.up(self.norm_two(x))))


def _network(way: Way, size: Size) -> tuple[Any, Any, Any]:
    paddle.seed(0)
    if way.network == "encoder":
        network = nn.Sequential(*(_Layer(size.width) for _ in range(size.layers)))
        x = paddle.randn([size.sequences, size.length, size.width])
        return network, x, paddle.optimizer.SGD(1e-4, parameters=network.parameters())
    layers = [
        layer
        for _ in range(size.layers)
        for layer in (nn.Linear(size.width, size.width), nn.ReLU())
    ]
    network = nn.Sequential(*layers)
    x = paddle.randn([size.sequences, size.width])
    return network, x, paddle.optimizer.Adam(1e-4, parameters=network.parameters())


def _region(way: Way) -> Callable[[], AbstractContextManager[Any]]:
    if way.by == _OWN:
        return lambda: paddle.amp.auto_cast(level=way.level, dtype=way.dtype)  # type: ignore[no-any-return]
    return way.region


def prepare(way: Way, size: Size) -> Callable[[], None]:
    network, x, optimizer = _network(way, size)
    if way.decorated:
        decorate = paddle.amp.decorate if way.by == _OWN else unamp.decorate
        network, optimizer = decorate(
            network, optimizer, level=way.level, dtype=way.dtype, master_weight=way.masters
        )
    region = _region(way)

    def step() -> None:
        with region():
            y = network(x)
        loss = y.astype("float32").square().mean()
        del y  # a function that computes the loss would free it, too
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        loss.item()

    return step
