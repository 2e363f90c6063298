"""`unamp.layer_policies` on Keras with TensorFlow keeps the promises of `keras_ruled`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras_ruled as shared
import pytest
import ruled
import tensorflow as tf
from keras_ruled import test_promises, test_what_is_saved_has_no_rules  # noqa: F401
from ruled import BF16, EXPECTED, F32, LOW, RULE

import unamp

X = tf.reshape(tf.linspace(-1.0, 1.0, 8), (2, 4))


def _gradients(loss: Callable[[], Any], network: Any) -> tuple[Any, Any]:
    with tf.GradientTape() as tape:
        value = loss()
    return value, tape.gradient(value, network.trainable_variables)


OF = ruled.Layers(
    lambda: shared.made(X),
    X,
    dtype=lambda tensor: str(tensor.dtype.name),
    numbers=lambda tensor: tf.cast(tensor, tf.float32).numpy(),
    first="first",
    second="second",
    share=shared.share,
    low=lambda tensor: tf.cast(tensor, tf.bfloat16),
    losses=shared.losses(X, _gradients),
)


@pytest.mark.parametrize("xla", [False, True])
def test_functions_are_traced_for_the_rules_too(xla: bool) -> None:
    network = OF.network()
    function = tf.function(network, jit_compile=xla)
    assert OF.dtypes(function) == [BF16] * 4
    for _ in range(2):
        with unamp.layer_policies(network, RULE):
            assert OF.dtypes(function) == EXPECTED
        assert OF.dtypes(function) == [BF16] * 4
    assert function.experimental_get_tracing_count() == 2
    assert OF.dtypes(function, region=False) == [F32] * 4
    with unamp.layer_policies(network, {"**.wi": LOW}):
        assert OF.dtypes(function, region=False) == [BF16, F32, BF16, F32]
    assert OF.dtypes(function, region=False) == [F32] * 4
