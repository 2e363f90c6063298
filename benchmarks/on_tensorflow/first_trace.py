"""The first trace of a process: the wait before a Keras training step runs in `tf.function`.

Each sample is a new process. It makes and enters a region and traces the step, as a program does;
in float32 it only traces. Both times include TensorFlow's and Keras' work at their first trace, and
Python's garbage collection, which finds a large heap there.
"""

from __future__ import annotations

from benchmarks.measure import Comparison
from benchmarks.processes import FreshInterpreter

__all__ = ["comparisons"]

_SOURCE = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import time
import tensorflow as tf
import unamp

tf.keras.utils.set_random_seed(0)
model = tf.keras.applications.{model}(weights=None, input_shape=({size}, {size}, 3), classes=10)
x, y = tf.zeros((2, {size}, {size}, 3)), tf.zeros((2,), tf.int32)
optimizer = tf.keras.optimizers.SGD(0.1)
optimizer.build(model.trainable_variables)
loss_of = tf.keras.losses.SparseCategoricalCrossentropy()

def step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True))
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return loss

began = time.process_time()
{trace}
print(time.process_time() - began)
"""

#: Keras' models, the size of their images, and the goal.
_MODELS = (("VGG16", 32, 1.4), ("MobileNetV3Small", 64, 1.3))

_PLAIN = "tf.function(step).get_concrete_function(x, y)"
_REGION = "with unamp.autocast(dtype='bfloat16'): " + _PLAIN


def comparisons() -> list[Comparison]:
    return [
        Comparison(
            f"keras: the first trace of a process, a training step of {model} at {size} pixels",
            (
                FreshInterpreter("float32", _SOURCE.format(model=model, size=size, trace=_PLAIN)),
                FreshInterpreter(
                    "unamp", _SOURCE.format(model=model, size=size, trace=_REGION), goal=goal
                ),
            ),
        )
        for model, size, goal in _MODELS
    ]
