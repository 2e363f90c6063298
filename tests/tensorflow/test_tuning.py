"""`unamp.tune` on Keras with TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras_tuned as shared
import pytest
import tensorflow as tf
import tuned


def _trained(network: Any, batch: Sequence[Any], scale: float) -> tuple[Any, list[Any]]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(network.big(tf.nn.relu(network.first(batch[0]))) ** 2)
        scaled = loss * scale
    gradients = tape.gradient(scaled, [network.first.kernel, network.big.kernel])
    return loss, [gradient / scale for gradient in gradients]


OF = tuned.Tunable(shared.made, tf.convert_to_tensor, _trained)


@pytest.mark.parametrize("promise", tuned.PROMISES)
def test_promises(promise: Any) -> None:
    promise(OF)


def test_a_layer_that_runs_under_another_name_is_held() -> None:
    shared.a_layer_that_runs_under_another_name_is_held()


def test_dropout_is_named() -> None:
    shared.dropout_is_named()
