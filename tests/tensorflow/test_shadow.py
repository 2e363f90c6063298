"""`unamp.trace(shadow=...)` records the shadows of TensorFlow's operations and Keras' layers."""

from __future__ import annotations

import numpy as np
import shadowed
import tensorflow as tf
from shadowed import *  # noqa: F403

import unamp


def test_a_shadow_changes_nothing():
    def run(trace):
        tf.keras.utils.set_random_seed(3)
        layers = tf.keras.layers
        net = tf.keras.Sequential(
            [
                layers.Dense(8, activation="gelu"),
                layers.BatchNormalization(),
                layers.Dropout(0.5),
                layers.Reshape((2, 4)),
                layers.LSTM(4, dropout=0.5, return_sequences=True),
                layers.GRU(4),
                layers.LayerNormalization(),
                layers.Dense(3, activation="softmax"),
            ]
        )
        x, running = tf.random.normal([6, 8]), tf.Variable(tf.ones([3]))
        with tf.GradientTape() as tape, trace:
            y = net(x, training=True)
            running.assign_add(tf.reduce_sum(y, 0))
            loss = tf.reduce_mean(tf.exp(y) * running)
        grads = tape.gradient(loss, net.trainable_variables)
        state = [variable.numpy() for variable in net.non_trainable_variables]
        return [*(t.numpy() for t in (loss, running, *grads, tf.random.normal([4]))), *state]

    trace = shadowed.a_shadow_changes_nothing(run)
    left_out = {record.op for record in trace.records if record.shadow.left_out}
    assert left_out == {"batch_norm", "lstm"}, trace.shadow_table()
    assert {"linear", "gru", "layer_norm", "exp", "mean"} <= {
        line.op for line in trace.shadow_summary() if not line.left_out
    }


def test_faults_lead():
    dense, value = tf.keras.layers.Dense, tf.keras.initializers.Constant
    net = tf.keras.Sequential(
        [
            dense(8, kernel_initializer=value(1.0)),
            dense(4, kernel_initializer=value(2e3), name="large"),
        ]
    )
    net(tf.ones([4, 8]))
    shadowed.faults_lead(tf.constant, tf.exp, tf.reduce_sum, net, "Sequential.large")


def test_an_operation_type_is_computed_twice_too():
    shadowed.error_is_that_of_numpy("tensorflow", lambda x: tf.raw_ops.Exp(x=x))


def test_a_variable_stays_what_it_is():
    table = tf.Variable(tf.ones([4, 2]))
    with unamp.trace(shadow="float16") as trace:
        tf.raw_ops.ResourceScatterAdd(resource=table.handle, indices=[1], updates=tf.ones([1, 2]))
        table.assign_add(tf.ones([4, 2]))
    assert np.array_equal(table.numpy(), [[2, 2], [3, 3], [2, 2], [2, 2]])
    assert all(record.shadow.left_out for record in trace.records)
