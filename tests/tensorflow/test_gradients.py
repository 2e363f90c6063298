"""`unamp.trace(gradients=True)` records the gradients of TensorFlow's operations."""

from __future__ import annotations

import differentiated
import numpy as np
import pytest
import tensorflow as tf
from differentiated import test_every_framework_promises  # noqa: F401

import unamp


def network() -> tf.keras.Sequential:
    tf.keras.utils.set_random_seed(0)
    return tf.keras.Sequential(
        [
            tf.keras.layers.Dense(16, name="first"),
            tf.keras.layers.ReLU(),
            tf.keras.layers.Dense(16, name="second"),
            tf.keras.layers.BatchNormalization(name="norm"),
            tf.keras.layers.Dropout(0.5),
            tf.keras.layers.Dense(4, name="last"),
        ],
        name="net",
    )


X = tf.constant(np.linspace(-1.0, 1.0, 32, dtype=np.float32).reshape(4, 8))


def test_a_layer_is_named() -> None:
    net = network()
    net(X)
    net.get_layer("norm").gamma.assign(tf.fill([16], 1e-9))

    def run() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(net(X))
        tape.gradient(loss, net.trainable_variables)

    differentiated.a_layer_is_named(run, "Sequential.second")


def test_parameters_have_theirs() -> None:
    net = network()  # not built yet

    def run():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(net(X)) + tf.reduce_sum(tf.square(net(X * 2.0)))
        gradients = tape.gradient(loss, net.trainable_variables)
        names = [
            f"Sequential.{variable.path.partition('/')[2].replace('/', '.')}"
            for variable in net.trainable_variables
        ]
        return dict(zip(names, map(np.asarray, gradients), strict=True))

    differentiated.parameters_have_theirs(run)


def test_variables_outside_of_layers_have_their_own_names() -> None:
    table, x = tf.Variable(tf.ones((5, 4)), name="table"), tf.Variable(tf.ones((2,)), name="x")
    with unamp.trace(gradients=True) as trace, tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [0, 1])) * tf.reduce_sum(x)
        tape.gradient(loss, {"table": table, "x": [x]})
    assert [each.parameter for each in trace.gradients if each.parameter] == ["table", "x"]
    assert "parameter table: its gradient is sparse (tf.IndexedSlices)" in trace.gradient_table()


def test_a_loss_scale_is_told() -> None:
    def scaled(scaler: unamp.GradScaler) -> None:
        v = tf.Variable(X)
        with tf.GradientTape() as tape:
            loss = scaler.scale(tf.reduce_sum(tf.exp(v)))
        tape.gradient(loss, v)

    differentiated.a_loss_scale_is_told(scaled)


@pytest.mark.parametrize(
    "region", [{"enabled": False}, {"dtype": "bfloat16"}, {"dtype": "float16", "level": "O3"}]
)
def test_a_trace_changes_nothing(region) -> None:
    def run(trace):
        net = network()
        lstm = tf.keras.layers.LSTM(4, return_sequences=True)
        with trace, tf.GradientTape(persistent=True) as tape:
            tape.watch(X)
            with unamp.autocast(**region):
                h = net(X, training=True)
                top, _ = tf.math.top_k(lstm(h[None]), 2)
                loss = tf.reduce_sum(tf.cast(tf.nn.log_softmax(top), tf.float32)) + tf.reduce_sum(
                    tf.square(X)
                )
            grads = tape.gradient(loss, [X, *net.trainable_variables, *lstm.trainable_variables])
        results = [loss, *grads, *net.non_trainable_variables, tf.random.uniform([4])]
        return [np.asarray(each).astype(np.float32) for each in results]

    differentiated.gradients_do_not_depend_on_a_trace(run)


def test_a_later_backward_pass_is_not_recorded() -> None:
    def forward():
        with tf.GradientTape() as tape:
            tape.watch(X)
            loss = tf.reduce_sum(tf.exp(X))
        return lambda: tape.gradient(loss, X)

    differentiated.a_later_backward_pass_is_not_recorded(forward)


def test_no_graph_is_kept() -> None:
    def made():
        for backward in (True, False):
            net = network()
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(net(X))
            if backward:
                tape.gradient(loss, net.trainable_variables)
            yield from (net, tape)

    differentiated.no_graph_is_kept(made)


def test_outside_of_a_tape_results_stay_what_they_are() -> None:
    with unamp.trace(gradients=True) as trace:
        tf.exp(X)
    assert (len(trace.records), trace.gradients) == (1, [])


def test_second_derivatives_and_forward_mode_are_right() -> None:
    v = tf.Variable([2.0])
    with unamp.trace(gradients=True) as trace:
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                cube = tf.reduce_sum(v * v * v)
            first = inner.gradient(cube, v)
        assert outer.gradient(first, v).numpy() == 12.0
        with tf.autodiff.ForwardAccumulator(v, tf.constant([1.0])) as forward:
            cube = v * v * v
        assert forward.jvp(cube).numpy() == 12.0
    assert len(trace.gradients) > 2


def test_a_sparse_gradient_is_named() -> None:
    v = tf.Variable(X)
    with unamp.trace(gradients=True) as trace:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(tf.exp(v), [0, 1]))
        tape.gradient(loss, v)
    assert "exp: its gradient is sparse (tf.IndexedSlices)" in trace.gradient_table()


def test_ragged_results_are_followed() -> None:
    v = tf.Variable([1.0, 2.0, 3.0])
    with unamp.trace(gradients=True) as trace:
        with tf.GradientTape() as tape:
            ragged = tf.exp(tf.RaggedTensor.from_row_lengths(v, [1, 2]))
            loss = tf.reduce_sum(ragged)
        gradient = tape.gradient(loss, v)
    np.testing.assert_allclose(gradient, np.exp([1.0, 2.0, 3.0]), rtol=1e-6)
    assert "exp" in {
        trace.records[each.record].op for each in trace.gradients if each.record is not None
    }
