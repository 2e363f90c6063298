"""A user's own training loop, with an optimizer that scales the loss."""

import keras
import numpy as np
import tensorflow as tf
from keras.optimizers import SGD, LossScaleOptimizer

keras.utils.set_random_seed(2)
policy = keras.DTypePolicy("mixed_float16")
model = keras.Sequential(
    [keras.Input((5,)), keras.layers.Dense(8, dtype=policy), keras.layers.Dense(1, dtype="float32")]
)
optimizer = LossScaleOptimizer(SGD(0.05), initial_scale=256.0, dynamic_growth_steps=2)
random = np.random.default_rng(2)
x, y = (tf.constant(random.normal(size=(16, n)), tf.float32) for n in (5, 1))
for _ in range(4):
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(tf.reduce_mean((model(x) - y) ** 2))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply(gradients, model.trainable_variables)

RESULT = [*model.get_weights(), optimizer.dynamic_scale.numpy()]
