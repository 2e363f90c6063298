"""keras.applications: training steps of MobileNetV3.

The native way is Keras' policy mixed_bfloat16.
"""

from contextlib import nullcontext

import keras
import numpy as np
from client import measure
from on_keras import eagerly, step_of


def build(region, policy="float32"):
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    model = keras.applications.MobileNetV3Small(
        (64, 64, 3), weights=None, classes=10, dropout_rate=0.0
    )
    x = np.random.default_rng(0).uniform(size=(4, 64, 64, 3)).astype("float32")
    return step_of(model, region, x, np.arange(4), "sparse_categorical_crossentropy")


measure(build, lambda: build(nullcontext, "mixed_bfloat16"), eagerly)
