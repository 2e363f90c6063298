"""keras-hub: training steps of a small BERT; the native way is Keras' policy mixed_bfloat16."""

from contextlib import nullcontext

import keras
import keras_hub
import tensorflow as tf
from client import measure
from on_keras import eagerly, step_of


def build(region, policy="float32"):
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    model = keras_hub.models.BertBackbone(1000, 2, 4, 128, 256, dropout=0.0, max_sequence_length=64)
    ids = tf.reshape(tf.range(256) % 1000, (4, 64))
    inputs = {"token_ids": ids, "segment_ids": tf.zeros_like(ids), "padding_mask": tf.ones_like(ids)}
    net = keras.Model(model.inputs, model.outputs[1] if isinstance(model.outputs, list) else model.outputs["pooled_output"])
    return step_of(net, region, inputs, lambda y: tf.reduce_mean((y - 1) ** 2))


measure(build, lambda: build(nullcontext, "mixed_bfloat16"), eagerly)
