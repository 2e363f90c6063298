"""The scaler on TensorFlow, where gradients are values and optimizers are Keras'."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import unamp


def network():
    keras.utils.set_random_seed(7)
    net = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
    net.build((None, 8))
    return net


def graded(net, scaler, step, *, overflow=False, **policy):
    """The loss and its scaled gradients."""
    x = np.random.default_rng(step).standard_normal((16, 8), dtype="float32")
    y = np.sin(x.sum(1, keepdims=True))
    with tf.GradientTape() as tape:
        with unamp.autocast(**{"dtype": "float16"} | policy):
            loss = tf.reduce_mean(tf.square(net(tf.constant(x * np.float32(math.inf) if overflow else x)) - y))
        scaled = scaler.scale(loss)
    return float(loss), tape.gradient(scaled, net.trainable_variables)


def values(net):
    return [variable.numpy() for variable in net.trainable_variables]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_training_with_an_overflow_reaches_the_loss_of_float32(dtype):
    def train(scaler, **policy):
        net = network()
        optimizer = keras.optimizers.Adam(0.01)
        for step in range(60):
            before = values(net)
            _, gradients = graded(net, scaler, step, overflow=scaler.is_enabled() and step == 20, **policy)
            scale, ran = scaler.get_scale(), scaler.step(optimizer, net.trainable_variables, gradients=gradients)
            scaler.update()
            if scaler.is_enabled():
                assert ran is (step != 20)
            if not ran:
                assert scaler.get_scale() == scale / 2
                assert all(np.array_equal(*pair) for pair in zip(before, values(net), strict=True))
        return sum(graded(net, scaler, 1000 + step, **policy)[0] for step in range(8)) / 8

    scaler = unamp.GradScaler(1024.0)
    low, exact = train(scaler, dtype=dtype), train(unamp.GradScaler(enabled=False), enabled=False)
    assert scaler.skipped == 1
    assert low == pytest.approx(exact, rel=0.03)


def test_clipping_and_naming():
    net, scaler = network(), unamp.GradScaler(2.0**10)
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(net.trainable_variables)
    _, scaled = graded(net, scaler, 0, enabled=False)
    _, plain = graded(net, unamp.GradScaler(enabled=False), 0, enabled=False)
    unscaled = scaler.unscale_(optimizer, scaled)
    for mine, own in zip(unscaled, plain, strict=True):
        np.testing.assert_allclose(mine, own, rtol=1e-6, atol=1e-9)
    clipped, _ = tf.clip_by_global_norm(unscaled, 0.1)
    before = values(net)
    assert scaler.step(optimizer, gradients=clipped) is True
    for old, new, gradient in zip(before, values(net), clipped, strict=True):
        np.testing.assert_allclose(new, old - 0.1 * gradient, rtol=1e-5, atol=1e-7)
    scaler.update()
    spoilt = [scaled[0], scaled[1] * math.nan, *scaled[2:]]
    assert scaler.step(optimizer, gradients=spoilt) is False
    assert scaler.first_nonfinite(optimizer, net, spoilt) == net.trainable_variables[1].path
    assert scaler.first_nonfinite(optimizer, gradients=spoilt) == net.trainable_variables[1].path


def test_sparse_and_missing_gradients():
    table, unused = tf.Variable(tf.ones([5, 3]), name="table"), tf.Variable(tf.ones([3]), name="unused")
    optimizer, scaler = keras.optimizers.SGD(1.0), unamp.GradScaler()
    with tf.GradientTape() as tape:
        loss = scaler.scale(tf.reduce_sum(tf.gather(table, [1, 1, 2])))
    gradients = tape.gradient(loss, [table, unused])
    assert isinstance(gradients[0], tf.IndexedSlices)
    unscaled = scaler.unscale_(optimizer, gradients)
    assert unscaled[1] is None
    np.testing.assert_allclose(tf.convert_to_tensor(unscaled[0]), np.outer([0, 2, 1, 0, 0], [1, 1, 1]))


def test_a_graph_that_would_keep_the_scale_is_refused():
    scaler = unamp.GradScaler()
    with pytest.raises(unamp.NotExpressible, match=r"hand it scaler.scale\(tf.constant\(1.0\)\) to multiply it by"):
        tf.function(scaler.scale, autograph=False)(tf.constant(1.0))


def test_a_graph_whose_loss_is_scaled_by_a_tensor():
    w, scaler = tf.Variable([1.0]), unamp.GradScaler(8.0)

    @tf.function
    def gradients(scale):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w) * scale
        return tape.gradient(loss, [w])

    with pytest.raises(RuntimeError, match=r"multiplies its loss by get_scale\(\) takes scale\(one\) instead"):
        scaler.step(keras.optimizers.SGD(0.5), [w], gradients=gradients(scaler.get_scale()))
    assert scaler.step(keras.optimizers.SGD(0.5), [w], gradients=gradients(scaler.scale(tf.constant(1.0))))
    assert w.numpy() == [0.5]


@pytest.mark.parametrize("enabled", [True, False])
def test_no_policy_reaches_a_step(enabled):
    def stepped(level):
        w, optimizer, scaler = tf.Variable([1.0, -2.0]), keras.optimizers.AdamW(0.1), unamp.GradScaler(enabled=enabled)
        scaler.scale(tf.constant(1.0))
        with unamp.autocast(level=level, dtype="bfloat16"):
            for gradient in ([0.3, 0.7], [0.1, -0.9]):
                scaler.step(optimizer, [w], gradients=[tf.constant(gradient)])
                scaler.update()
            optimizer.apply([tf.constant([0.2, 0.6])], [w])
        return w.numpy()

    assert np.array_equal(stepped("O3"), stepped("O0"))


def test_gradients_must_be_handed_over():
    scaler, w = unamp.GradScaler(), tf.Variable([1.0])
    scaler.scale(tf.constant(1.0))
    with pytest.raises(TypeError, match="TensorFlow's gradients are values: hand them over"):
        scaler.step(keras.optimizers.SGD(0.1), [w])
    for wrong, got in (([(tf.constant([1.0]), w)], "a tuple in it"), ("w", "a str in it"), (tf.constant([1.0]), "EagerTensor")):
        with pytest.raises(TypeError, match=rf"must be a list of tensors.* got .*{got}"):
            scaler.step(keras.optimizers.SGD(0.1), [w], gradients=wrong)
    with pytest.raises(ValueError, match="there are float16 gradients"):
        scaler.step(keras.optimizers.SGD(0.1), [w], gradients=[tf.constant([1.0], tf.float16)])


@pytest.mark.parametrize(
    ("loss", "named"),
    [
        (tf.constant(1), "EagerTensor of int32"),
        (tf.ragged.constant([[1.0]]), "RaggedTensor of float32"),
        (tf.SparseTensor([[0]], [1.0], [1]), "SparseTensor of float32"),
    ],
)
def test_a_loss_that_is_none_is_named(loss, named):
    scaler = unamp.GradScaler()
    with pytest.raises(TypeError, match=named):
        scaler.scale(loss)
    assert scaler.scale(tf.constant(1.0)).dtype == tf.float32
