"""Replicas compute under the policy of the thread that starts them."""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import unamp


@pytest.fixture(scope="module")
def strategy():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.mark.parametrize("graph", [False, True])
def test_replicas_inherit_the_policy(strategy, graph):
    seen = []

    def replica():
        seen.append(unamp.get_autocast_dtype())
        x = tf.ones([4, 4])
        return tf.cast(tf.matmul(x, x).dtype == tf.bfloat16, tf.int32)

    def run():
        return strategy.run(replica)

    run = tf.function(run) if graph else run
    with unamp.autocast(dtype="bfloat16"):
        inside = strategy.experimental_local_results(run())
    outside = strategy.experimental_local_results(run())
    assert ([int(v) for v in inside], [int(v) for v in outside]) == ([1, 1], [0, 0])
    assert seen == ["bfloat16", "bfloat16", None, None]


def test_training_with_mirrored_variables(strategy):
    with strategy.scope():
        weight = tf.Variable(tf.ones([4, 2]))
        optimizer = tf.keras.optimizers.SGD(0.1)
        optimizer.build([weight])

    @tf.function
    def step(x):
        def replica(x):
            with tf.GradientTape() as tape:
                y = tf.matmul(x, weight)
                loss = tf.reduce_sum(tf.cast(y, tf.float32)) / 4.0
            gradient = tape.gradient(loss, weight)
            weight.assign_sub(0.1 * tf.distribute.get_replica_context().all_reduce("sum", gradient))
            return tf.cast(y.dtype == tf.bfloat16, tf.int32), gradient

        return strategy.run(replica, args=(x,))

    with unamp.autocast(dtype="bfloat16"):
        low, gradient = step(tf.ones([2, 4]))
    assert [int(v) for v in strategy.experimental_local_results(low)] == [1, 1]
    assert all(g.dtype == tf.float32 for g in strategy.experimental_local_results(gradient))
    for value in strategy.experimental_local_results(weight):
        tf.debugging.assert_near(value, tf.fill([4, 2], 0.9), atol=1e-6)


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_replicas_updates_are_float32(strategy, level):
    with strategy.scope():
        weight = tf.Variable(tf.ones([4, 2]))
        optimizer = tf.keras.optimizers.SGD(0.001)
        optimizer.build([weight])

    @tf.function
    def step():
        def replica():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.matmul(tf.ones([1, 4]), weight))
            optimizer.apply([tape.gradient(loss, weight)], [weight])

        strategy.run(replica)

    with unamp.policy_region(unamp.Policy(level, "bfloat16")):
        step()
    for value in strategy.experimental_local_results(weight):
        # Both replicas' steps add up to 0.002; in bfloat16 they would be 0.0020027.
        tf.debugging.assert_near(value, tf.fill([4, 2], 0.998), rtol=0.0, atol=2e-7)


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_an_overflow_of_one_replica_skips_the_step_of_all(strategy, level):
    with strategy.scope():
        net = keras.Sequential([keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
        net.build((None, 3))
        optimizer = keras.optimizers.Adam(0.01)
        unamp.decorate(net, optimizer, level, "float16")
        optimizer.build(net.trainable_variables)
    scaler = unamp.GradScaler(1024.0)

    @tf.function
    def graded(x, scale):
        def replica(x):
            with tf.GradientTape() as tape:
                with unamp.autocast(level=level, dtype="float16"):
                    out = net(x)
                loss = tf.reduce_sum(tf.square(tf.cast(out, tf.float32))) * scale
            return tape.gradient(loss, net.trainable_variables)

        return strategy.run(replica, (x,))

    def replicas():
        return [
            [each.numpy() for each in strategy.experimental_local_results(v.value)]
            for v in net.trainable_variables
        ]

    for number in range(4):
        x = np.random.default_rng(number).standard_normal((2, 8, 3), dtype="float32")
        x[1] *= math.inf if number == 2 else 1.0
        given = strategy.experimental_distribute_values_from_function(
            lambda replica, x=x: tf.constant(x[replica.replica_id_in_sync_group])
        )
        before, scale = replicas(), scaler.get_scale()
        gradients = graded(given, scaler.scale(tf.constant(1.0)))
        if number == 3:
            gradients = scaler.unscale_(optimizer, gradients)
        assert scaler.step(optimizer, gradients=gradients) is (number != 2)
        scaler.update()
        after = replicas()
        assert all(np.array_equal(*each) for each in after)
        assert scaler.get_scale() == (scale / 2 if number == 2 else scale)
        for old, new in zip(before, after, strict=True):
            assert all(np.array_equal(*pair) for pair in zip(old, new, strict=True)) is (
                number == 2
            )
    assert scaler.skipped == 1
