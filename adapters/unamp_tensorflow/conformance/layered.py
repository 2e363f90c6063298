"""The Keras network for checks of layer rules, and the ways to run it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

import tensorflow as tf

from unamp.adapter.layered_networks import LayeredNetworks, Runner, eager


@cache
def _classes() -> tuple[Any, Any]:
    keras: Any = tf.keras  # imported when first asked for

    class Block(keras.layers.Layer):  # type: ignore[misc] # a class that is found out here
        def __init__(self, sizes: Sequence[int]) -> None:
            super().__init__(name="block")
            names = ("first", "second")
            self.first, self.second = (
                keras.layers.Dense(n, use_bias=False, name=m)
                for n, m in zip(sizes, names, strict=True)
            )

        def call(self, x: Any) -> Any:
            return self.first(x), self.second(x)

    class Network(keras.Model):  # type: ignore[misc]
        def __init__(self, sizes: Sequence[int]) -> None:
            super().__init__()
            self.block = Block(sizes)

        def call(self, x: Any) -> Any:
            return self.block(x)

    return Block, Network


def _network(weights: Sequence[Any], device: str) -> Any:
    network = _classes()[1]([weight.shape[0] for weight in weights])
    with tf.device(device):
        network(tf.zeros((1, weights[0].shape[1])))
    network.set_weights([weight.T for weight in weights])
    return network


def _compiled(network: Any) -> Runner:
    return eager(tf.function(network))


def _exported(network: Any) -> Runner:
    def run(region: Any, x: Any) -> Any:
        module = tf.Module()
        module.network = network
        module.run = tf.function(
            lambda x: network(x), input_signature=[tf.TensorSpec(x.shape, x.dtype)]
        )
        with TemporaryDirectory() as folder:
            with region():
                tf.saved_model.save(module, folder)
            loaded = tf.saved_model.load(folder)  # held, since its variables are freed with it
            return loaded.run(x)

    return run


def layered() -> LayeredNetworks:
    """Return the network, and the ways to run it, for the conformance suite."""
    return LayeredNetworks(_network, {"eager": eager, "compiled": _compiled, "exported": _exported})
