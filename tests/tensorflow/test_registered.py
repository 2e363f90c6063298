"""Operations of one's own on TensorFlow: see `registered`."""

from collections.abc import Callable

import pytest
import registered
import tensorflow as tf

import unamp


@pytest.mark.parametrize("promise", registered.promises("tensorflow"))
def test_promises(promise: Callable[[], None]) -> None:
    promise()


@tf.custom_gradient
def doubled(x):
    return x + x, lambda gradient: 2 * gradient


def test_graphs():
    registered.a_compiled_function_follows("tensorflow", tf.function)


def test_a_function_with_a_gradient_of_its_own():
    registration = unamp.register_operation("unamp_tests::doubled", doubled, rule="low")
    x = tf.fill([4], 1 + 2.0**-9)
    with unamp.autocast(dtype="bfloat16"), tf.GradientTape() as tape:
        tape.watch(x)
        low = doubled(x)
        total = tf.reduce_sum(tf.cast(low, tf.float32))
    gradient = tape.gradient(total, x)
    registration.undo()
    assert (low.dtype, float(low[0])) == (tf.bfloat16, 2.0)
    assert (gradient.dtype, float(gradient[0])) == (tf.float32, 2.0)
