"""Training inside one region that stays open computes with the changed variables."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import tensorflow as tf

import unamp

keras = tf.keras
STEPS = 300


@cache
def made():
    numbers = np.random.default_rng(0)
    x = tf.constant(numbers.normal(size=(64, 8)), tf.float32)
    return x, tf.matmul(x, tf.constant(numbers.normal(size=(8, 1)), tf.float32))


@pytest.fixture
def data():
    return made()


def network():
    keras.utils.set_random_seed(0)
    made = keras.Sequential([keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)])
    made.build((None, 8))
    return made


def by_keras(model):
    optimizer = keras.optimizers.SGD(0.05)
    optimizer.build(model.trainable_variables)
    return optimizer.apply


def by_hand(model):
    def update(gradients):
        for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
            variable.assign_sub(0.05 * gradient)

    return update


def trained(data, update_of, run, *, enabled, dtype="bfloat16"):
    """Return the loss after some hundred steps in one region."""
    x, y = data
    model = network()
    update = update_of(model)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        update(tape.gradient(loss, model.trainable_variables))
        return tf.cast(loss, tf.float32)

    with unamp.autocast(dtype=dtype, enabled=enabled):
        return float(run(step))


def eagerly(step):
    return [step() for _ in range(STEPS)][-1]


def step_by_step(step):
    return eagerly(tf.function(step))


@tf.function
def in_one_graph(step):
    loss = tf.constant(0.0)
    for _ in tf.range(STEPS):
        loss = step()
    return loss


@cache
def exact(update_of):
    return trained(made(), update_of, step_by_step, enabled=False)


@pytest.mark.parametrize("update_of", [by_keras, by_hand])
@pytest.mark.parametrize("run", [eagerly, step_by_step, in_one_graph])
def test_training_in_one_region_comes_to_the_loss_of_float32(data, update_of, run, low):
    first = float(tf.reduce_mean((network()(data[0]) - data[1]) ** 2))
    found = trained(data, update_of, run, enabled=True, dtype=low.name)
    assert exact(update_of) < 0.02 * first
    assert found < 1.2 * exact(update_of)


def test_with_a_scaler(data):
    x, y = data
    model, scaler = network(), unamp.GradScaler()
    optimizer = keras.optimizers.SGD(0.05)
    optimizer.build(model.trainable_variables)

    @tf.function
    def gradients(factor):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
            scaled = tf.cast(loss, tf.float32) * factor
        return loss, tape.gradient(scaled, model.trainable_variables)

    with unamp.autocast(dtype="float16"):
        for _ in range(STEPS):
            loss, found = gradients(scaler.scale(tf.constant(1.0)))
            scaler.step(optimizer, gradients=found)
            scaler.update()
    assert float(loss) < 1.2 * exact(by_keras)


def test_weights_that_are_loaded_inside_a_region_are_computed_with(data, low, tmp_path):
    x, _ = data
    model, other = network(), network()
    for variable in other.variables:
        variable.assign(tf.ones_like(variable))
    other.save_weights(tmp_path / "all.weights.h5")
    with unamp.autocast(dtype=low.name):
        for call, wanted in ((model, other(x)), (tf.function(model), tf.function(other)(x))):
            model.set_weights([np.zeros(variable.shape) for variable in model.variables])
            assert float(tf.reduce_max(tf.abs(call(x)))) == 0.0
            model.load_weights(tmp_path / "all.weights.h5")
            np.testing.assert_array_equal(tf.cast(call(x), tf.float32), tf.cast(wanted, tf.float32))
            for variable in model.variables:
                variable.value.assign(tf.zeros_like(variable))
            assert float(tf.reduce_max(tf.abs(call(x)))) == 0.0
