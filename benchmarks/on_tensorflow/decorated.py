"""Steps of decorated Keras optimizers, beside float32 master weights written by hand.

Both run eagerly and in a `tf.function`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

import unamp
from benchmarks.measure import Comparison, Contender

__all__ = ["comparisons"]

#: The number of dense layers, and their width.
_STACKS = ((4, 64), (4, 256), (3, 1024))


class _ByHand:
    """Two casts for each variable: its gradient to float32, and the master weight back."""

    def __init__(self, model: Any) -> None:
        self.masters = model.trainable_variables
        self.low = [tf.Variable(tf.cast(each, tf.bfloat16)) for each in self.masters]
        self.optimizer = tf.keras.optimizers.Adam(1e-4)
        self.optimizer.build(self.masters)

    def step(self, gradients: Any) -> None:
        self.optimizer.apply([tf.cast(each, tf.float32) for each in gradients], self.masters)
        for low, master in zip(self.low, self.masters, strict=True):
            low.assign(tf.cast(master, low.dtype))


def comparisons() -> list[Comparison]:
    return [
        _comparison(layers, width, graph) for graph in (False, True) for layers, width in _STACKS
    ]


def _comparison(layers: int, width: int, graph: bool) -> Comparison:
    models = []
    for _ in range(3):
        tf.keras.utils.set_random_seed(0)
        dense = [tf.keras.layers.Dense(width, bias_initializer="normal") for _ in range(layers)]
        models.append(tf.keras.Sequential([tf.keras.layers.Input([width]), *dense]))
    by_hand = _ByHand(models[0])
    decorated, plain = tf.keras.optimizers.Adam(1e-4), tf.keras.optimizers.Adam(1e-4)
    unamp.decorate(models[1], decorated, "O2", "bfloat16")
    for optimizer, model in zip((decorated, plain), models[1:], strict=True):
        optimizer.build(model.trainable_variables)
    wide = [
        tf.random.normal(each.shape, seed=number)
        for number, each in enumerate(models[0].trainable_variables)
    ]
    low = [tf.cast(each, tf.bfloat16) for each in wide]

    def contender(
        name: str, step: Callable[[Any], None], gradients: Any, goal: float | None = None
    ) -> Contender:
        compiled = tf.function(step) if graph else step
        compiled(gradients)
        names = {"step": compiled, "gradients": gradients}
        return Contender(name, "step(gradients)", names, goal=goal, timer=time.process_time)

    contenders = (
        contender("master weights by hand", by_hand.step, low),
        contender(
            "unamp.decorate",
            lambda gradients: decorated.apply(gradients, models[1].trainable_variables),
            low,
            1.1 if width >= 1024 else 1.3,
        ),
        contender(
            "float32", lambda gradients: plain.apply(gradients, models[2].trainable_variables), wide
        ),
    )
    pairs = zip(by_hand.low, models[1].trainable_variables, strict=True)
    if not all(
        bool(tf.reduce_all(tf.convert_to_tensor(a) == tf.convert_to_tensor(b))) for a, b in pairs
    ):
        raise RuntimeError(
            "unamp and its baseline do not compute the same; the benchmark would be meaningless"
        )
    return Comparison(
        f"keras: optimizer step, Adam, {layers} layers of {width}, {'graph' if graph else 'eager'}",
        contenders,
    )
