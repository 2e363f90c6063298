"""keras-hub, on the backend that KERAS_BACKEND names: training steps of a small BERT.

The native way is Keras' policy mixed_bfloat16.
"""

from contextlib import nullcontext

import keras
import keras_hub
import numpy as np
from client import measure
from on_keras import eagerly, step_of


def build(region, policy="float32"):
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    model = keras_hub.models.BertBackbone(1000, 2, 4, 128, 256, dropout=0.0, max_sequence_length=64)
    ids = (np.arange(256) % 1000).reshape(4, 64)
    inputs = {
        "token_ids": ids,
        "segment_ids": np.zeros_like(ids),
        "padding_mask": np.ones_like(ids),
    }
    net = keras.Model(model.input, model.output["pooled_output"])
    return step_of(net, region, inputs, np.ones((4, 128), "float32"), "mean_squared_error")


measure(build, lambda: build(nullcontext, "mixed_bfloat16"), eagerly)
