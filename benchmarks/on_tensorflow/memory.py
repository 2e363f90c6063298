"""Peak memory of training with Keras in `tf.function`; see `benchmarks.memory`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

import unamp
from benchmarks import memory
from benchmarks.measure import Comparison
from benchmarks.memory import Meter, Size, Way

__all__ = ["comparisons", "meter", "prepare"]

_GPU = bool(tf.config.list_physical_devices("GPU"))
_OWN = "Keras"

layers = tf.keras.layers


def comparisons() -> Iterator[Comparison]:
    # On a CPU, a float16 product with a matrix of 2048 columns takes TensorFlow ten seconds.
    wide = memory.LOW if _GPU else ("bfloat16",)
    own = [Way("encoder", _OWN, "", f"mixed_{dtype}") for dtype in memory.LOW]
    own += [Way("wide", _OWN, "", f"mixed_{dtype}") for dtype in wide]
    return memory.comparisons("TensorFlow", __name__, own, wide=wide)


def meter() -> Meter:
    if not _GPU:
        return memory.resident()
    told = tf.config.experimental
    return Meter(
        lambda: told.get_memory_info("GPU:0")["current"],
        lambda: told.reset_memory_stats("GPU:0"),
        lambda: told.get_memory_info("GPU:0")["peak"],
    )


def _layer(x: Any, width: int) -> Any:
    h = layers.LayerNormalization()(x)
    x = layers.Add()([x, layers.MultiHeadAttention(4, width // 4)(h, h)])
    h = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
    return layers.Add()([x, layers.Dense(width)(h)])


def _network(way: Way, size: Size) -> tuple[Any, Any, Any]:
    tf.keras.utils.set_random_seed(0)
    if way.network == "encoder":
        inputs = y = layers.Input([size.length, size.width])
        for _ in range(size.layers):
            y = _layer(y, size.width)
        x = tf.random.normal([size.sequences, size.length, size.width])
        return tf.keras.Model(inputs, y), x, tf.keras.optimizers.SGD(1e-4)
    dense = [layers.Dense(size.width, activation="relu") for _ in range(size.layers)]
    network = tf.keras.Sequential([layers.Input([size.width]), *dense])
    return network, tf.random.normal([size.sequences, size.width]), tf.keras.optimizers.Adam(1e-4)


def prepare(way: Way, size: Size) -> Callable[[], None]:
    before = tf.keras.config.dtype_policy()
    tf.keras.config.set_dtype_policy(way.dtype if way.by == _OWN else "float32")
    network, x, optimizer = _network(way, size)
    tf.keras.config.set_dtype_policy(before)
    if way.decorated:
        unamp.decorate(network, optimizer, way.level, way.dtype, master_weight=way.masters)

    @tf.function
    def compiled(x: Any) -> Any:
        with tf.GradientTape() as tape:
            with way.region():
                y = network(x, training=True)
            loss = tf.reduce_mean(tf.square(tf.cast(y, tf.float32)))
        gradients = tape.gradient(loss, network.trainable_variables)
        optimizer.apply(gradients, network.trainable_variables)
        return loss

    return lambda: float(compiled(x))
