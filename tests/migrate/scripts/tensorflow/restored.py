"""A policy that is set for some layers and restored, and a policy that is read."""

import keras
import numpy as np
from tensorflow.keras import mixed_precision as mixed

keras.utils.set_random_seed(4)
mixed.set_global_policy(mixed.Policy("mixed_bfloat16"))
names = [mixed.global_policy().name]
layers = [keras.layers.Dense(4)]
mixed.set_global_policy("float32")
names.append(mixed.global_policy().name)
layers.append(keras.layers.Dense(4))
model = keras.Sequential([keras.Input((3,)), *layers])
optimizer = mixed.LossScaleOptimizer(keras.optimizers.SGD(0.1), 64.0)
model.compile(optimizer=optimizer, loss="mse", jit_compile=False)
random = np.random.default_rng(4)
model.fit(
    random.normal(size=(8, 3)),
    random.normal(size=(8, 4)),
    epochs=2,
    batch_size=4,
    shuffle=False,
    verbose=0,
)
assert [name.removeprefix("mixed_") for name in names] == ["bfloat16", "float32"]

RESULT = model.get_weights()
