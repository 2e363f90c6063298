"""Steps and learning rates of TensorFlow's own optimizers in a region."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import unamp
from unamp import Policy, policy_region


@pytest.mark.parametrize("level", ["O2", "O3"])
@pytest.mark.parametrize(
    ("kind", "rest"),
    [
        ("GradientDescentOptimizer", {}),
        ("MomentumOptimizer", {"momentum": 0.9}),
        ("AdamOptimizer", {}),
        ("ProximalAdagradOptimizer", {}),
    ],
)
def test_an_optimizer_of_version_1_takes_gradients_that_a_program_made_low(kind, rest, level, low):
    def trained(region):
        weight = tf.Variable(np.full((4, 3), 2.0, np.float32))
        optimizer = getattr(tf.compat.v1.train, kind)(learning_rate=0.125, **rest)
        with region:
            for _ in range(3):
                optimizer.apply_gradients([(tf.ones((4, 3)) * 0.5, weight), (None, weight)])
        return weight.numpy()

    expected = trained(unamp.autocast(enabled=False))
    found = trained(policy_region(Policy(level, low.name)))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("level", ["O2", "O3"])
def test_keras_adds_up_in_float32_gradients_that_a_program_made_low(level, scaled, graph, low):
    def trained(region, dtype):
        weight = keras.Variable(np.full(3, 2.0, np.float32))
        inner = keras.optimizers.SGD(1.0, gradient_accumulation_steps=3, clipvalue=300.0)
        optimizer = keras.optimizers.LossScaleOptimizer(inner, 1.0) if scaled else inner
        optimizer.build([weight])

        def step(number, named):
            with region:
                made = tf.ones(3) * number
                assert made.dtype == dtype
                optimizer.apply([made], [weight] if named else None)

        step = tf.function(step) if graph else step
        for named, number in enumerate((256.0, 1.0, 1.0)):
            step(tf.constant(number), named > 0)
        assert inner._accumulated_gradients[0].dtype == "float32"
        return weight.numpy()

    expected = trained(unamp.autocast(enabled=False), tf.float32)
    np.testing.assert_array_equal(expected, np.full(3, 2.0 - 86.0, np.float32))
    found = trained(policy_region(Policy(level, low.name)), low)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_a_strategy_updates_a_variable_with_numbers_that_a_program_made_low(level, low):
    weight = tf.Variable(np.full(3, 70_001.0, np.float32))
    strategy = tf.distribute.get_strategy()
    with policy_region(Policy(level, low.name)):
        rate = tf.constant(0.5) * 1.0
        strategy.extended.update(
            weight, lambda of, grad: of.assign_sub(rate * grad), args=(tf.ones(3) * 2.0,)
        )
    np.testing.assert_array_equal(weight, np.full(3, 70_000.0))


@pytest.mark.parametrize("level", ["O2", "O3"])
@pytest.mark.parametrize(
    "rate",
    [
        lambda: tf.compat.v1.train.exponential_decay(0.1, 100_001, 10_000, 0.96),
        lambda: tf.compat.v1.train.polynomial_decay(0.1, 70_001, 100_000),
        lambda: tf.compat.v1.train.cosine_decay_restarts(0.1, 70_001, 1000),
        lambda: tf.compat.v1.train.inverse_time_decay(0.1, 70_001, 1000, 0.5),
        lambda: tf.compat.v1.train.natural_exp_decay(0.1, 70_001, 100_000, 0.3),
    ],
)
def test_learning_rates_of_version_1_come_to_the_same_bits_as_outside(rate, level, low):
    expected = rate()()
    with policy_region(Policy(level, low.name)):
        found = rate()()
    assert found.dtype == tf.float32
    assert found.numpy() == expected.numpy()
