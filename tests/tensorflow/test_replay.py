"""A trace keeps calls of TensorFlow and Keras, and each can be run again alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import replayed
import tensorflow as tf
from elsewhere import ended

from unamp.cli.main import main


def layers() -> None:
    """Call layers and functions of Keras, and operators, with arguments kept in different ways."""
    keras = tf.keras
    keras.utils.set_random_seed(0)
    x = keras.layers.Embedding(5, 16)(tf.constant([0, 3, 1, 2]))
    h = keras.activations.gelu(
        keras.layers.LayerNormalization(epsilon=1e-6)(keras.layers.Dense(8)(x))
    )
    h = keras.ops.softmax(
        keras.ops.matmul(h, tf.transpose(tf.tanh(keras.ops.gelu(h)))) * 2.0, axis=0
    )
    images = keras.layers.Conv2D(4, 3, strides=2, padding="same")(tf.reshape(x, [4, 4, 4, 1]))
    images = keras.layers.Conv2D(4, (3, 1), padding="same", groups=2)(
        keras.layers.BatchNormalization()(images)
    )
    pooled = keras.layers.MaxPooling2D(2)(keras.layers.ReLU()(images))
    _ = tf.reduce_sum(pooled) + tf.reduce_sum(
        2.0 ** (1.0 / (3.0 - tf.reduce_mean(h, 1, keepdims=True)))
    )


def functions() -> None:
    """Call TensorFlow's own functions."""
    x = tf.constant(np.random.default_rng(0).standard_normal((2, 6, 6, 4)), tf.float32)
    images = tf.nn.conv2d(x, x[0, :3, :3, :, None], 1, [[0, 0], [1, 1], [0, 2], [0, 0]])
    images = tf.nn.max_pool2d(tf.nn.leaky_relu(images), 2, 2, "SAME")
    y = tf.linalg.matmul(x[0], x[1], transpose_b=True)
    _ = tf.nn.softmax(tf.nn.gelu(y, approximate=True)) + tf.nn.log_softmax(y)
    tf.linalg.matmul(x[0, 0], x[1, 1], transpose_a=True)
    tf.nn.avg_pool2d(images, (3, 1), (3, 1), "VALID")


@pytest.mark.parametrize("low", ["", "bfloat16"])
def test_every_operation_comes_out_as_in_the_run(low: str, tmp_path: Path) -> None:
    replayed.check_run(
        layers, tmp_path / "a", low, "mindspore", "batch_norm conv2d linear softmax".split()
    )
    trace = replayed.kept(functions, tmp_path / "b", low)
    ops = "add avg_pool2d conv2d gelu leaky_relu log_softmax matmul max_pool2d softmax".split()
    replayed.check_every_call(trace, tmp_path / "b", ops, low)


def test_keras_on_another_backend_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = replayed.kept(
        lambda: tf.keras.layers.LayerNormalization()(tf.constant([[1.0, 2.0]])), tmp_path
    )
    assert [record.op for record in trace.records] == ["layer_norm"]
    words = ["unamp", "replay", str(tmp_path / "trace.json"), "1", "--json"]
    done = ended("-m", *words, KERAS_BACKEND="jax", COLUMNS="300")
    assert done.code == 2, done.stdout + done.stderr
    assert "Keras computes with jax in this process" in done.stderr
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as end:  # in this process it computes with TensorFlow
        main()
    assert end.value.code == 0
    assert "Keras computes with" not in capsys.readouterr().err
