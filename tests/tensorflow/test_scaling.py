"""The scaler works on TensorFlow, where gradients are values and optimizers are Keras'."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import unamp


def test_sparse_and_missing_gradients():
    table, unused = (
        tf.Variable(tf.ones([5, 3]), name="table"),
        tf.Variable(tf.ones([3]), name="unused"),
    )
    optimizer, scaler = keras.optimizers.SGD(1.0), unamp.GradScaler()
    with tf.GradientTape() as tape:
        loss = scaler.scale(tf.reduce_sum(tf.gather(table, [1, 1, 2])))
    gradients = tape.gradient(loss, [table, unused])
    assert isinstance(gradients[0], tf.IndexedSlices)
    unscaled = scaler.unscale_(optimizer, gradients)
    assert unscaled[1] is None
    np.testing.assert_allclose(
        tf.convert_to_tensor(unscaled[0]), np.outer([0, 2, 1, 0, 0], [1, 1, 1])
    )


def test_a_graph_that_would_keep_the_scale_is_refused():
    scaler = unamp.GradScaler()
    with pytest.raises(
        unamp.NotExpressible, match=r"hand it scaler.scale\(tf.constant\(1.0\)\) to multiply it by"
    ):
        tf.function(scaler.scale, autograph=False)(tf.constant(1.0))


def test_a_graph_whose_loss_is_scaled_by_a_tensor():
    w, scaler = tf.Variable([1.0]), unamp.GradScaler(8.0)

    @tf.function
    def gradients(scale):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w) * scale
        return tape.gradient(loss, [w])

    with pytest.raises(
        RuntimeError, match=r"multiplies its loss by get_scale\(\) takes scale\(one\) instead"
    ):
        scaler.step(keras.optimizers.SGD(0.5), [w], gradients=gradients(scaler.get_scale()))
    assert scaler.step(
        keras.optimizers.SGD(0.5), [w], gradients=gradients(scaler.scale(tf.constant(1.0)))
    )
    assert w.numpy() == [0.5]


@pytest.mark.parametrize("enabled", [True, False])
def test_no_policy_reaches_a_step(enabled):
    def stepped(level):
        w, optimizer, scaler = (
            tf.Variable([1.0, -2.0]),
            keras.optimizers.AdamW(0.1),
            unamp.GradScaler(enabled=enabled),
        )
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
    for wrong, got in (
        ([(tf.constant([1.0]), w)], "a tuple in it"),
        ("w", "a str in it"),
        (tf.constant([1.0]), "EagerTensor"),
    ):
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
