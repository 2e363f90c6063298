"""`unamp.tune` on Keras with TensorFlow keeps the promises of `tuned` and `keras_tuned`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras_tuned as shared
import tensorflow as tf
import tuned
from keras_tuned import *  # noqa: F403
from tuned import test_promises  # noqa: F401


def _trained(network: Any, batch: Sequence[Any], scale: float) -> tuple[Any, list[Any]]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(network.big(tf.nn.relu(network.first(batch[0]))) ** 2)
        scaled = loss * scale
    gradients = tape.gradient(scaled, [network.first.kernel, network.big.kernel])
    return loss, [gradient / scale for gradient in gradients]


OF = tuned.Tunable(shared.made, tf.convert_to_tensor, _trained)
