"""A compiled step, with layers under a policy that `keras.config` sets."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(3)
keras.config.set_dtype_policy("mixed_bfloat16")
model = keras.Sequential(
    [
        keras.Input((4, 4, 2)),
        keras.layers.Conv2D(3, 2),
        keras.layers.Flatten(),
        keras.layers.Dense(2),
    ]
)
keras.config.set_dtype_policy("float32")
optimizer = keras.optimizers.Adam(0.01)
optimizer.build(model.trainable_variables)
random = np.random.default_rng(3)
x, y = (
    tf.constant(random.normal(size=(8, 4, 4, 2)), tf.float32),
    tf.constant(random.normal(size=(8, 2)), tf.float32),
)


@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.cast(model(x), tf.float32) - y) ** 2)
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return loss


losses = [step().numpy() for _ in range(3)]

RESULT = [*model.get_weights(), *losses]
