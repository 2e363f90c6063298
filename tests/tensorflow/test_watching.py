"""The monitor on TensorFlow follows models of Keras, whose gradients are lists."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from watched import finds_the_layer_that_underflows, swallowed

import unamp

X = tf.random.stateless_normal((16, 8), (0, 1))


def model() -> tf.keras.Model:
    """Return a model whose layer `tiny` is behind a small factor.

    The factor makes the layer's gradient subnormal in float16.
    """
    x = tf.keras.Input((8,))
    dense = tf.keras.layers.Dense
    h = dense(8, name="first")(x) + 1e-5 * dense(8, name="tiny")(x)
    return tf.keras.Model(x, dense(4, name="last")(h))


def test_a_layer_that_underflows_is_found_by_its_name() -> None:
    tf.keras.utils.set_random_seed(0)
    network, optimizer, scaler = model(), tf.keras.optimizers.SGD(1e-2), unamp.GradScaler(1.0)
    watch = unamp.watch(network, optimizer, scaler=scaler, every=1)

    def step() -> None:
        with tf.GradientTape() as tape, unamp.autocast(dtype="float16"):
            loss = scaler.scale(tf.reduce_mean(tf.cast(network(X), tf.float32) ** 2))
        gradients = tape.gradient(loss, network.trainable_variables)
        with watch.step(gradients):
            scaler.step(optimizer, network.trainable_variables, gradients=gradients)
            scaler.update()

    finds_the_layer_that_underflows(watch, 2, step)


def test_low_variables_tell_what_rounding_swallows() -> None:
    tf.keras.utils.set_random_seed(0)
    network = tf.keras.Sequential(
        [tf.keras.layers.Dense(8, dtype=tf.keras.DTypePolicy("bfloat16"))]
    )
    network.build((None, 8))
    optimizer = tf.keras.optimizers.SGD(1e-3)
    watch = unamp.watch(network, optimizer, dtype="bfloat16")
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.cast(network(tf.cast(X, tf.bfloat16)), tf.float32) ** 2)
    gradients = tape.gradient(loss, network.trainable_variables)
    before = [tf.identity(each) for each in network.trainable_variables]
    with watch.step(gradients):
        optimizer.apply(gradients, network.trainable_variables)
    flat = [np.concatenate([tf.cast(each, tf.float32).numpy().reshape(-1) for each in row]).tolist()
            for row in (before, gradients, network.trainable_variables)]  # fmt: skip
    found = watch.history.samples[0].layers[0].swallowed
    assert found == pytest.approx(swallowed(*flat))
    assert 0.0 < found < 1.0


def test_none_and_rows_are_gradients() -> None:
    table, used, unused = (
        tf.Variable(tf.ones((10, 4))),
        tf.Variable(tf.ones(4)),
        tf.Variable(tf.ones(4)),
    )

    class Net(tf.keras.Model):
        trainable_variables = (table, used, unused)

    network = Net()
    watch = unamp.watch(network)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [1, 3]) * used)
    with watch.step(tape.gradient(loss, network.trainable_variables)):
        pass
    layers = watch.history.samples[0].layers
    assert sum(layer.size for layer in layers) == 8 + 4 + 4
    assert any(layer.missing for layer in layers)


def test_gradients_of_something_else() -> None:
    watch = unamp.watch(model())
    with pytest.raises(TypeError, match="gradients are values"):
        watch.step()
    for wrong, said in (([], "one for each of 6 trained variables; not 0"), (X, "not a .*Tensor")):
        with pytest.raises(ValueError, match=said), watch.step(wrong):
            pass

    @tf.function(autograph=False)  # AutoGraph would raise errors of its own classes
    def inside(x):
        with watch.step([x]):
            return x

    with pytest.raises(unamp.NotExpressible, match="outside of it"):
        inside(X)
    assert watch.steps == 0
