"""keras.applications: training steps of MobileNetV3; the native way is Keras' policy mixed_bfloat16."""

from contextlib import nullcontext

import keras
import tensorflow as tf
from client import measure
from on_keras import eagerly, step_of


def build(region, policy="float32"):
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    model = keras.applications.MobileNetV3Small((64, 64, 3), weights=None, classes=10, dropout_rate=0.0)
    x, labels = tf.random.stateless_uniform((4, 64, 64, 3), (1, 2)), tf.range(4)
    return step_of(model, region, x, lambda y: tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(labels, y)))


measure(build, lambda: build(nullcontext, "mixed_bfloat16"), eagerly)
