"""Steps in `tf.function`, against casts by hand, Keras's mixed_bfloat16 and grappler's rewriter."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

import unamp
from benchmarks.measure import Comparison, Sampler

__all__ = ["comparisons"]

layers = tf.keras.layers


@dataclass(frozen=True)
class Step:
    """A training step, timed by the processor time of all threads.

    TensorFlow computes in threads of its own.
    """

    name: str
    step: Callable[[], Any]
    region: Callable[[], AbstractContextManager[Any]] = nullcontext
    goal: float | None = None
    at_most: float | None = None

    def sampler(self, seconds: float) -> Sampler:
        for _ in range(3):  # the first one traces; the runtime settles in the others
            self.sample()
        return self

    def sample(self) -> float:
        with self.region():
            began = time.process_time()
            loss = self.step()
            float(loss)
            return time.process_time() - began


@contextmanager
def _grappler() -> Iterator[None]:
    tf.config.optimizer.set_experimental_options({"auto_mixed_precision_onednn_bfloat16": True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options(
            {"auto_mixed_precision_onednn_bfloat16": False}
        )


def _attention_block(x: Any, width: int) -> Any:
    h = layers.LayerNormalization()(x)
    x = layers.Add()([x, layers.MultiHeadAttention(4, width // 4)(h, h)])
    h = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
    return layers.Add()([x, layers.Dense(width)(h)])


def _mlp() -> tuple[Any, tf.Tensor]:
    sizes = [layers.Dense(1024, activation="relu") for _ in range(3)]
    return tf.keras.Sequential(
        [layers.Input([1024]), *sizes, layers.Dense(1024)]
    ), tf.random.normal([256, 1024])


def _conv() -> tuple[Any, tf.Tensor]:
    blocks = [layers.Conv2D(64, 3, padding="same", activation="relu") for _ in range(3)]
    return tf.keras.Sequential([layers.Input([32, 32, 64]), *blocks]), tf.random.normal(
        [16, 32, 32, 64]
    )


def _transformer() -> tuple[Any, tf.Tensor]:
    inputs = layers.Input([64, 256])
    return tf.keras.Model(
        inputs, _attention_block(_attention_block(inputs, 256), 256)
    ), tf.random.normal([8, 64, 256])


def _step(make: Callable[[], tuple[Any, tf.Tensor]], policy: str = "float32") -> Callable[[], Any]:
    before = tf.keras.config.dtype_policy().name
    tf.keras.config.set_dtype_policy(policy)
    try:
        tf.keras.utils.set_random_seed(0)
        model, x = make()
    finally:
        tf.keras.config.set_dtype_policy(before)

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.cast(model(x, training=True), tf.float32) ** 2)
        weights = [variable.value for variable in model.trainable_variables]
        for weight, slope in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(1e-4 * slope)
        return loss

    return step


def _mlp_by_hand() -> Callable[[], Any]:
    weights = [tf.Variable(tf.random.normal([1024, 1024]) / 32.0) for _ in range(4)]
    biases = [tf.Variable(tf.zeros([1024])) for _ in range(4)]
    x = tf.random.normal([256, 1024])

    def low(tensor: Any) -> tf.Tensor:
        return tf.cast(tensor, tf.bfloat16)

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            h = x
            for n, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
                h = tf.matmul(low(h), low(weight)) + low(bias)
                h = tf.nn.relu(h) if n < 3 else h
            loss = tf.reduce_mean(tf.cast(h, tf.float32) ** 2)
        variables = weights + biases
        for variable, slope in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(1e-4 * slope)
        return loss

    return step


def comparisons() -> Iterator[Comparison]:
    region = unamp.autocast(dtype="bfloat16")
    for title, make in (("MLP", _mlp), ("conv net", _conv), ("transformer", _transformer)):
        yield Comparison(
            f"tensorflow: {title}, a training step in tf.function",
            (
                Step("Keras, mixed_bfloat16", _step(make, "mixed_bfloat16")),
                *([Step("tf.cast by hand", _mlp_by_hand())] if make is _mlp else []),
                Step("grappler, onednn_bfloat16", _step(make), _grappler),
                Step("float32", _step(make)),
                Step("unamp", _step(make), lambda: region, goal=1.05),
            ),
        )
