"""A global policy in bfloat16, with compile and fit."""

import keras
import numpy as np
from keras import layers, mixed_precision

keras.utils.set_random_seed(0)
before = mixed_precision.global_policy()
mixed_precision.set_global_policy("mixed_bfloat16")
model = keras.Sequential(
    [keras.Input((8,)), layers.Dense(16, activation="relu"), layers.Dense(4, dtype="float32")]
)
mixed_precision.set_global_policy(before)
model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse", jit_compile=False)
random = np.random.default_rng(0)
model.fit(
    random.normal(size=(32, 8)),
    random.normal(size=(32, 4)),
    epochs=2,
    batch_size=16,
    shuffle=False,
    verbose=0,
)

RESULT = model.get_weights()
