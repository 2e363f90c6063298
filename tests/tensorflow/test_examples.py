"""The examples of README.md and the guides that use TensorFlow run as pasted."""

import keras
import numpy as np
import tensorflow as tf
from documents import conventions, test_example  # noqa: F401
from followed import added, told


def test_the_architecture_follows_an_add() -> None:
    assert added(tf.ones([4])) == told("TensorFlow")


def test_conventions() -> None:
    norm, told = keras.layers.BatchNormalization(), conventions("Keras")
    assert told["batch norm's momentum"] == str(norm.momentum)
    assert told["batch norm's epsilon"] == str(norm.epsilon)
    assert told["layer norm's epsilon"] == str(keras.layers.LayerNormalization().epsilon)
    conv, dense = keras.layers.Conv2D(3, (4, 5)), keras.layers.Dense(3)
    conv.build((1, 8, 8, 2))
    dense.build((1, 2))
    assert (told["convolution's kernel"], tuple(conv.kernel.shape)) == (
        "row, column, in, out",
        (4, 5, 2, 3),
    )
    assert (told["linear layer's weight"], tuple(dense.kernel.shape)) == ("in, out", (2, 3))
    assert told["convolution's padding"] == conv.padding
    assert (told["convolution's bias"], conv.use_bias) == ("yes", True)
    assert (told["stride of average pooling"], keras.layers.AveragePooling2D(4).strides) == (
        "the kernel's size",
        (4, 4),
    )
    x = np.random.randn(2, 2, 2, 1).astype(np.float32)
    norm(x, training=True)
    assert (told["which is the share of"], told["running variance of n numbers is divided by"]) == (
        "the old",
        "n",
    )
    np.testing.assert_allclose(norm.moving_variance.numpy(), 0.99 + 0.01 * x.var(), rtol=1e-6)
