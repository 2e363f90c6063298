"""The network that `tuned` searches, in Keras, on every backend."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tuned

import unamp


class Total(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        return keras.ops.sum(x) / x.shape[0]


class Soft(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        e = keras.ops.exp(x)
        return e / keras.ops.sum(e, -1, keepdims=True)


class Net(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.first = keras.layers.Dense(tuned.WIDTH, use_bias=False, name="first")
        self.big = keras.layers.Dense(tuned.WIDTH, use_bias=False, name="big")
        self.norm = keras.layers.LayerNormalization(epsilon=1e-5, name="norm")
        self.total, self.soft = Total(name="total"), Soft(name="soft")

    def call(self, x: Any, many: Any) -> Any:
        h = keras.ops.relu(self.first(x))
        return self.norm(self.big(h)), self.total(many), self.soft(h + 12)


def made(weights: dict[str, np.ndarray]) -> Net:
    network = Net()
    network(keras.ops.zeros((1, tuned.WIDTH)), keras.ops.zeros((1,)))
    for name, array in weights.items():
        getattr(network, name).kernel.assign(array.T)
    return network


def test_a_layer_that_runs_under_another_name_is_held() -> None:
    """Check an embedding: its own name decides, although a trace may show the function it calls."""
    network = keras.Sequential([keras.layers.Embedding(32, 8), keras.layers.Dense(4)])
    batches = [keras.ops.convert_to_tensor([[n, n + 1, n + 2]]) for n in range(0, 28, 4)]
    found = unamp.tune(network, network, batches, dtype="bfloat16", tolerance=1e-5)
    assert len(found.report.held) == 2
    assert found.report.error == 0.0


def test_dropout_is_named() -> None:
    network = keras.Sequential([keras.layers.Dense(4), keras.layers.Dropout(0.5)])
    with pytest.raises(
        ValueError,
        match=r"there is dropout in dropout\w* \(Dropout\); call the network with training=False",
    ):
        unamp.tune(lambda x: network(x, training=True), network, [keras.ops.ones((8, 4))])


__all__ = [name for name in globals() if name.startswith("test_")]
