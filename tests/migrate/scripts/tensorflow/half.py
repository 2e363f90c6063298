"""A global policy in float16, with which `compile` scales the loss."""

import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(1)
tf.keras.mixed_precision.set_global_policy("mixed_float16")
model = tf.keras.Sequential(
    [tf.keras.Input((6,)), tf.keras.layers.Dense(12), tf.keras.layers.Dense(2, dtype="float32")]
)
tf.keras.mixed_precision.set_global_policy("float32")
model.compile(optimizer="sgd", loss="mse", jit_compile=False)
random = np.random.default_rng(1)
model.fit(
    random.normal(size=(16, 6)),
    random.normal(size=(16, 2)),
    epochs=2,
    batch_size=8,
    shuffle=False,
    verbose=0,
)

RESULT = model.get_weights()
