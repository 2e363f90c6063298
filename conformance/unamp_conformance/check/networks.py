"""The networks, written once against the operation namespace.

Parameters and data come from a seed in NumPy, so they are identical to the bit on every framework.
Sizes are small: float16 is slow on CPUs, and precision shows in a network of any size.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unamp.adapter import Operations

__all__ = ["NETWORKS", "Functions", "Lacking", "Network"]

Arrays = dict[str, np.ndarray]
Tensors = Mapping[str, Any]


class Lacking(LookupError):
    """The framework has no function for an operation, which the message names."""


class Functions:
    """Operations as attributes (``f.linear(x, w, b)``), with a note of which were called."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self.called: list[str] = []

    def __getattr__(self, op: str) -> Callable[..., Any]:
        try:
            function = self._operations[op]
        except KeyError as error:
            raise Lacking(op) from error

        def noted(*args: Any, **kw: Any) -> Any:
            self.called.append(op)
            return function(*args, **kw)

        return noted


@dataclass(frozen=True)
class Network:
    """A network with its loss.

    Attributes:
        name, title: its key, and a few words.
        forward: ``forward(f, p, d)`` gives the output; ``p`` holds parameters and buffers, ``d``
            the data.
        loss: ``loss(f, output, d)`` gives a scalar.
        shapes: the parameters, drawn so that activations keep their size; a shape of one number is
            a bias.
        data: makes the data from a generator.
        buffers: running statistics, each with the value that it starts with.
        ones: parameters that start near one (the weights of norms).
    """

    name: str
    title: str
    forward: Callable[[Functions, Tensors, Tensors], Any]
    loss: Callable[[Functions, Any, Tensors], Any]
    shapes: Mapping[str, tuple[int, ...]]
    data: Callable[[np.random.Generator], Arrays]
    buffers: Mapping[str, tuple[tuple[int, ...], float]] = field(default_factory=dict)
    ones: frozenset[str] = frozenset()

    def parameters(self) -> Arrays:
        """Return the parameters in float32, the same on every call."""
        generator = self._generator("parameters")
        return {
            name: self._parameter(generator, name, shape) for name, shape in self.shapes.items()
        }

    def inputs(self) -> Arrays:
        """Return the data, floating parts in float32, the same on every call."""
        made = self.data(self._generator("data"))
        return {
            name: a.astype(np.float32) if a.dtype.kind == "f" else a for name, a in made.items()
        }

    def statistics(self) -> Arrays:
        """Return the buffers in float32, as they are before training."""
        return {
            name: np.full(shape, value, np.float32) for name, (shape, value) in self.buffers.items()
        }

    def _parameter(
        self, generator: np.random.Generator, name: str, shape: tuple[int, ...]
    ) -> np.ndarray:
        if name in self.ones:
            return (1.0 + 0.1 * generator.standard_normal(shape)).astype(np.float32)
        fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 16
        return (generator.standard_normal(shape) / math.sqrt(fan_in)).astype(np.float32)

    def _generator(self, part: str) -> np.random.Generator:
        return np.random.default_rng(zlib.crc32(f"{self.name}/{part}".encode()))


def _classified(f: Functions, output: Any, d: Tensors) -> Any:
    return f.cross_entropy(output, d["label"])


def _squared(f: Functions, output: Any, d: Tensors) -> Any:
    return f.mse_loss(output, d["target"])


def _clicked(f: Functions, output: Any, d: Tensors) -> Any:
    return f.binary_cross_entropy_with_logits(output, d["target"])


def _mlp(f: Functions, p: Tensors, d: Tensors) -> Any:
    h = f.relu(f.linear(d["x"], p["w1"], p["b1"]))
    h = f.relu(f.linear(h, p["w2"], p["b2"]))
    return f.linear(h, p["w3"], p["b3"])


def _conv(f: Functions, p: Tensors, d: Tensors) -> Any:
    return f.conv2d(d["x"], p["w"], stride=2, padding=1)


def _lenet(f: Functions, p: Tensors, d: Tensors) -> Any:
    h = f.max_pool2d(f.tanh(f.conv2d(d["x"], p["c1"], p["cb1"], padding=2)), 2)
    h = f.max_pool2d(f.tanh(f.conv2d(h, p["c2"], p["cb2"])), 2)
    h = f.flatten(h, 1)
    h = f.tanh(f.linear(h, p["w1"], p["b1"]))
    h = f.tanh(f.linear(h, p["w2"], p["b2"]))
    return f.linear(h, p["w3"], p["b3"])


def _residual(f: Functions, p: Tensors, d: Tensors) -> Any:
    x = d["x"]
    h = f.conv2d(x, p["c1"], padding=1)
    h = f.relu(
        f.batch_norm(h, p["mean1"], p["var1"], p["g1"], p["s1"], training=True, momentum=0.1)
    )
    h = f.conv2d(h, p["c2"], padding=1)
    h = f.batch_norm(h, p["mean2"], p["var2"], p["g2"], p["s2"], training=True, momentum=0.1)
    h = f.relu(f.add(h, x))
    h = f.flatten(f.avg_pool2d(h, 4), 1)
    return f.linear(h, p["w"], p["b"])


def _transformer(f: Functions, p: Tensors, d: Tensors) -> Any:
    x = d["x"]
    h = f.layer_norm(x, [32], p["n1"], p["m1"])
    q, k, v = (_heads(f, f.linear(h, p[f"w{n}"], p[f"b{n}"])) for n in "qkv")
    scores = f.mul(f.matmul(q, f.transpose(k, -2, -1)), 8**-0.5)
    mixed = f.matmul(f.softmax(scores, dim=-1), v)
    mixed = f.reshape(f.permute(mixed, (0, 2, 1, 3)), (2, 6, 32))
    x = f.add(x, f.linear(mixed, p["wo"], p["bo"]))
    h = f.layer_norm(x, [32], p["n2"], p["m2"])
    h = f.linear(f.gelu(f.linear(h, p["w1"], p["b1"])), p["w2"], p["b2"])
    return f.add(x, h)


def _heads(f: Functions, x: Any) -> Any:
    return f.permute(f.reshape(x, (2, 6, 4, 8)), (0, 2, 1, 3))


def _lstm(f: Functions, p: Tensors, d: Tensors) -> Any:
    h = f.transpose(f.embedding(d["tokens"], p["table"]), 0, 1)
    output, _, _ = f.lstm(h, d["h0"], d["c0"], p["w_ih"], p["w_hh"], p["b_ih"], p["b_hh"])
    return f.linear(f.select(output, 0, -1), p["w"], p["b"])


def _ranking(f: Functions, p: Tensors, d: Tensors) -> Any:
    user, item = f.embedding(d["user"], p["users"]), f.embedding(d["item"], p["items"])
    h = f.cat([user, item, f.mul(user, item), d["dense"]], dim=1)
    h = f.relu(f.linear(h, p["w1"], p["b1"]))
    h = f.relu(f.linear(h, p["w2"], p["b2"]))
    return f.squeeze(f.linear(h, p["w3"], p["b3"]), 1)


def _unet(f: Functions, p: Tensors, d: Tensors) -> Any:
    top = f.relu(f.conv2d(d["x"], p["c1"], p["b1"], padding=1))
    middle = f.relu(f.conv2d(f.max_pool2d(top, 2), p["c2"], p["b2"], padding=1))
    bottom = f.relu(f.conv2d(f.max_pool2d(middle, 2), p["c3"], p["b3"], padding=1))
    up = f.conv_transpose2d(bottom, p["t2"], p["tb2"], stride=2)
    up = f.relu(f.conv2d(f.cat([up, middle], dim=1), p["c4"], p["b4"], padding=1))
    up = f.conv_transpose2d(up, p["t1"], p["tb1"], stride=2)
    up = f.relu(f.conv2d(f.cat([up, top], dim=1), p["c5"], p["b5"], padding=1))
    return f.conv2d(up, p["c6"], p["b6"])


def _x(*shape: int) -> Callable[[np.random.Generator], np.ndarray]:
    return lambda g: g.standard_normal(shape)


def _ids(bound: int, *shape: int) -> Callable[[np.random.Generator], np.ndarray]:
    return lambda g: g.integers(0, bound, shape)


def _coin(*shape: int) -> Callable[[np.random.Generator], np.ndarray]:
    return lambda g: g.integers(0, 2, shape).astype(np.float32)


def _data(
    **parts: Callable[[np.random.Generator], np.ndarray],
) -> Callable[[np.random.Generator], Arrays]:
    return lambda g: {name: make(g) for name, make in parts.items()}


_ALL = (
    Network(
        "mlp", "multi-layer perceptron", _mlp, _classified,
        {"w1": (48, 32), "b1": (48,), "w2": (48, 48), "b2": (48,), "w3": (10, 48), "b3": (10,)},
        _data(x=_x(16, 32), label=_ids(10, 16)),
    ),
    Network(
        "conv", "one strided convolution, 64 to 128 channels", _conv, _squared,
        {"w": (128, 64, 3, 3)},
        _data(x=_x(1, 64, 8, 8), target=_x(1, 128, 4, 4)),
    ),
    Network(
        "lenet5", "LeNet-5", _lenet, _classified,
        {"c1": (6, 1, 5, 5), "cb1": (6,), "c2": (16, 6, 5, 5), "cb2": (16,),
         "w1": (120, 400), "b1": (120,), "w2": (84, 120), "b2": (84,), "w3": (10, 84), "b3": (10,)},
        _data(x=_x(2, 1, 28, 28), label=_ids(10, 2)),
    ),
    Network(
        "residual", "residual block with batch norm", _residual, _classified,
        {"c1": (8, 8, 3, 3), "g1": (8,), "s1": (8,), "c2": (8, 8, 3, 3), "g2": (8,), "s2": (8,),
         "w": (10, 32), "b": (10,)},
        _data(x=_x(4, 8, 8, 8), label=_ids(10, 4)),
        buffers={
            "mean1": ((8,), 0.0), "var1": ((8,), 1.0), "mean2": ((8,), 0.0), "var2": ((8,), 1.0)
        },
        ones=frozenset({"g1", "g2"}),
    ),
    Network(
        "transformer", "transformer encoder block", _transformer, _squared,
        {"n1": (32,), "m1": (32,), "wq": (32, 32), "bq": (32,), "wk": (32, 32), "bk": (32,),
         "wv": (32, 32), "bv": (32,), "wo": (32, 32), "bo": (32,), "n2": (32,), "m2": (32,),
         "w1": (64, 32), "b1": (64,), "w2": (32, 64), "b2": (32,)},
        _data(x=_x(2, 6, 32), target=_x(2, 6, 32)), ones=frozenset({"n1", "n2"}),
    ),
    Network(
        "lstm", "LSTM classifier", _lstm, _classified,
        {"table": (20, 16), "w_ih": (64, 16), "w_hh": (64, 16), "b_ih": (64,), "b_hh": (64,),
         "w": (5, 16), "b": (5,)},
        _data(
            tokens=_ids(20, 4, 6), h0=lambda g: np.zeros((1, 4, 16)),
            c0=lambda g: np.zeros((1, 4, 16)), label=_ids(5, 4),
        ),
    ),
    Network(
        "ranking", "embeddings and a multi-layer perceptron", _ranking, _clicked,
        {"users": (30, 8), "items": (40, 8), "w1": (32, 28), "b1": (32,),
         "w2": (16, 32), "b2": (16,), "w3": (1, 16), "b3": (1,)},
        _data(user=_ids(30, 16), item=_ids(40, 16), dense=_x(16, 4), target=_coin(16)),
    ),
    Network(
        "unet", "U-Net with transposed convolutions", _unet, _clicked,
        {"c1": (4, 1, 3, 3), "b1": (4,), "c2": (8, 4, 3, 3), "b2": (8,), "c3": (16, 8, 3, 3),
         "b3": (16,), "t2": (16, 8, 2, 2), "tb2": (8,), "c4": (8, 16, 3, 3), "b4": (8,),
         "t1": (8, 4, 2, 2), "tb1": (4,), "c5": (4, 8, 3, 3), "b5": (4,), "c6": (1, 4, 1, 1),
         "b6": (1,)},
        _data(x=_x(1, 1, 16, 16), target=_coin(1, 1, 16, 16)),
    ),
)  # fmt: skip

#: Every network by its name.
NETWORKS = {network.name: network for network in _ALL}
